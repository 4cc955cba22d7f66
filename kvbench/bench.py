"""The speed of a plan's variants: printed by `kvbench bench speed`, kept by `analysis=speed`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from kvbench import provenance
from kvbench.errors import UserError
from kvbench.hydra_errors import one_line
from kvbench.model import load
from kvbench.overrides import hydra_words
from kvbench.plan import Plan
from kvbench.planning import plan_from_config
from kvbench.progress import Progress
from kvbench.record import Writer, run_header
from kvbench.report.paper import Beside, paper_sheets
from kvbench.report.paper_speed import SpeedNumbers
from kvbench.report.sheet import Sheet
from kvbench.report.speed_sheet import speed_sheet
from kvbench.speed import measured_speed
from kvbench.speed_record import Lengths, SpeedRun
from kvbench.sweep import folded_jobs


def speed_of_words(words: Sequence[str]) -> list[Sheet]:
    """Measure what the words of a run name: a sheet for each model, then a paper's beside ours.

    Args:
        words: overrides such as `method=spindlekv`, `budget=0.2,0.4`, `speed.context=4096`,
            `model.random_weights=true`, `experiment=spindlekv/table9`.

    Raises:
        UserError: a word is wrong, or the prompt does not fit the model.
    """
    plans = _plans(hydra_words(words))
    runs = [measured(plan) for plan in plans]
    sheets = [speed_sheet(run) for run in runs]
    beside = Beside.of(plans[-1].config.get("experiment"))
    return sheets if beside is None else [*sheets, *paper_sheets(beside, SpeedNumbers(runs))]


def record_speed(plan: Plan) -> Path:
    """Measure a plan's variants and add what was found to its run folder.

    Raises:
        UserError: the prompt does not fit the model, or the folder cannot be written to.
    """
    data: dict[str, Any] = {"description": "random tokens", "revision": None, "hashes": {}}
    header = run_header(plan, {task.name: 0 for task in plan.tasks}, data)
    with Writer(plan.out, header) as writer:
        measured(plan).write(writer)
    return plan.out


def measured(plan: Plan) -> SpeedRun:
    """Measure the speed of a plan's variants.

    Raises:
        UserError: the prompt does not fit the model.
    """
    lengths = _lengths(plan.config["speed"])
    model = load(plan.model)
    with Progress(plan.model.name, len(plan.variants)) as progress:
        speeds = measured_speed(model, plan.variants, lengths, progress)
    return SpeedRun(
        model=plan.model.name,
        weights="random weights" if plan.model.kind == "random" else plan.model.path,
        lengths=lengths,
        speeds=tuple(speeds),
        machine=provenance.machine(str(model.device)),
        versions=provenance.versions(),
    )


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


def _lengths(node: Mapping[str, Any]) -> Lengths:
    for name, least in (("context", 1), ("generate", 2), ("repeats", 1)):
        value = node.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(f"speed.{name}={value!r} is not a whole number >= {least}")
    return Lengths(node["context"], node["generate"], node["repeats"])
