"""`kvbench bench speed`: the words of a run, its variants measured instead of its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import hydra
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from kvbench import provenance
from kvbench.errors import UserError
from kvbench.hydra_errors import one_line
from kvbench.model import load
from kvbench.overrides import hydra_words
from kvbench.plan import Plan
from kvbench.planning import plan_from_config
from kvbench.report.paper_shape import published_sheets
from kvbench.report.published import published_table
from kvbench.report.sheet import Sheet
from kvbench.report.speed_sheet import speed_sheet
from kvbench.speed import Lengths, measured_speed
from kvbench.sweep import folded_jobs


def speed_of_words(words: Sequence[str]) -> list[Sheet]:
    """Measure what the words of a run name: a sheet for each model, then what a paper printed.

    Args:
        words: overrides such as `method=spindlekv`, `budget=0.2,0.4`, `speed.context=4096`,
            `model.random_weights=true`, `experiment=spindlekv/table9`.

    Raises:
        UserError: a word is wrong, or the prompt does not fit the model.
    """
    plans = _plans(hydra_words(words))
    sheets = [_measured(plan) for plan in plans]
    beside = plans[-1].config.get("experiment")
    return sheets + (published_sheets(published_table(beside["published"])) if beside else [])


def _plans(words: Sequence[str]) -> list[Plan]:
    try:
        with hydra.initialize_config_module("kvbench.conf", version_base="1.3"):
            swept = [*_swept_by_experiment(words), *words]
            jobs = folded_jobs(OverridesParser.create().parse_overrides(swept))
            return [plan_from_config(hydra.compose("config", job), job) for job in jobs]
    except HydraException as error:
        raise UserError(one_line(error, words)) from error


def _swept_by_experiment(words: Sequence[str]) -> list[str]:
    """The axes that an experiment sweeps, as on the command line."""
    named = [word for word in words if word.startswith("experiment=")]
    params = hydra.compose("config", named, return_hydra_config=True).hydra.sweeper.params or {}
    return hydra_words(f"{axis}={values}" for axis, values in params.items())


def _measured(plan: Plan) -> Sheet:
    lengths = _lengths(plan.config["speed"])
    model = load(plan.model)
    speeds = measured_speed(model, plan.variants, lengths)
    weights = "random weights" if plan.model.kind == "random" else plan.model.path
    return speed_sheet(speeds, lengths, f"{plan.model.name} ({weights})", _machine(model.device))


def _lengths(node: Mapping[str, Any]) -> Lengths:
    for name, least in (("context", 1), ("generate", 2), ("repeats", 1)):
        value = node.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(f"speed.{name}={value!r} is not a whole number >= {least}")
    return Lengths(node["context"], node["generate"], node["repeats"])


def _machine(device: torch.device) -> list[str]:
    found = provenance.machine(str(device))
    versions = provenance.versions()
    facts = [f"{name} {value}" for name, value in found.items() if value is not None]
    return [
        ", ".join(facts),
        ", ".join(f"{name} {versions[name]}" for name in ("kvbench", "torch", "transformers")),
    ]
