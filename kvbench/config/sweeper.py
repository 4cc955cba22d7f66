"""Hydra sweeps: which axes share one prefill, and the way from the command line to a run.

The axes `method`, `budget`, `method.*` and `method/*` become the variants of one job, because
variants share the prefill; every other axis (model, task, data, protocol, ...) becomes jobs, which
any stock Hydra launcher runs. Knows nothing of methods or models.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from threading import RLock
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from kvbench.base.errors import UserError
from kvbench.base.suggest import did_you_mean
from kvbench.config.consent import checked_compositions
from kvbench.config.hydra_errors import one_line
from kvbench.config.hydra_private import failure_of, register_plugins
from kvbench.config.planning import plan_from_config
from kvbench.config.ray_launcher import RayLauncher
from kvbench.config.words import hydra_words, quoted, refuse_repeats
from kvbench.plan.plan import Plan


@dataclass(frozen=True)
class JobResult:
    """What one job came to."""

    plan: Plan
    value: Any
    """What the job's function returned."""


_results: ContextVar[list[JobResult]] = ContextVar("results")
"""Where the sweeper leaves its jobs' results: Hydra's entry returns nothing."""

_one_hydra = RLock()
"""Hydra keeps what it composes with in globals of the process."""


def run_words(words: Sequence[str], job: TaskFunction) -> list[JobResult]:
    """Run what Hydra's own words and flags ask for.

    Args:
        words: overrides and flags, as after `kvbench run`.
        job: runs one job's configuration; launchers may call it in other processes.

    Returns:
        Each job's result, in order.

    Raises:
        UserError: anything the user got wrong, Hydra's own complaints included.
        Exception: the first job that failed raises its own, once all jobs have ended.
    """
    register_plugins((VariantSweeper, RayLauncher))
    entry = hydra.main(config_path="pkg://kvbench.conf", config_name="config", version_base="1.3")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise, rather than print a shortened traceback and exit
    arguments = sys.argv
    refuse_repeats(words)
    words = hydra_words(words)
    _check_flags(words)
    _check_launcher(words)
    results: list[JobResult] = []
    token = _results.set(results)
    sys.argv = ["kvbench run", *words]  # where Hydra reads them
    try:
        with _one_hydra, checked_compositions():
            entry(job)()
    except HydraException as error:
        if isinstance(error.__cause__, UserError):  # of a launcher that Hydra builds
            raise error.__cause__ from error
        raise UserError(one_line(error, words)) from error
    except OmegaConfBaseException as error:
        raise UserError(" ".join(str(error).split())) from error
    finally:
        sys.argv = arguments
        _results.reset(token)
    return results


def plan_of_job(config: DictConfig) -> Plan:
    """Return the plan of the job that runs, from inside its function."""
    return plan_from_config(config, list(HydraConfig.get().overrides.task))


def plans_of_words(words: Sequence[str]) -> list[Plan]:
    """Return the plans of all jobs that words sweep, without running Hydra's own command.

    Raises:
        UserError: anything wrong with the words.
    """
    refuse_repeats(words)
    words = hydra_words(words)
    try:
        with _one_hydra, hydra.initialize_config_module("kvbench.conf", version_base="1.3"):
            swept = [*_swept_by_experiment(words), *words]
            jobs = folded_jobs(OverridesParser.create().parse_overrides(swept))
            return [plan_from_config(hydra.compose("config", job), job) for job in jobs]
    except HydraException as error:
        raise UserError(one_line(error, words)) from error
    except OmegaConfBaseException as error:
        raise UserError(" ".join(str(error).split())) from error


def _swept_by_experiment(words: Sequence[str]) -> list[str]:
    """The axes that an experiment sweeps, as on the command line."""
    named = [word for word in words if word.startswith("experiment=")]
    params = hydra.compose("config", named, return_hydra_config=True).hydra.sweeper.params or {}
    return hydra_words(f"{axis}={values}" for axis, values in params.items())


def _check_flags(words: Sequence[str]) -> None:
    """Refuse Hydra's one flag that reads a pickle, which can run anything; it may be shortened."""
    for word in words:
        flag = word.partition("=")[0]
        if flag.startswith("--e") and "--experimental-rerun".startswith(flag):
            raise UserError(f"{flag} loads a pickle, which can run code: give the words instead")


def _check_launcher(words: Sequence[str]) -> None:
    """Refuse a launcher that is not there: Hydra would complain of something else.

    Raises:
        UserError: naming it, and the remedy.
    """
    registered = {Path(name).stem for name in ConfigStore.instance().list("hydra/launcher")}
    shipped = {
        Path(path.name).stem
        for path in files("kvbench.conf").joinpath("hydra", "launcher").iterdir()
    }
    for word in words:
        group, _, name = word.partition("=")
        if group != "hydra/launcher":
            continue
        if name not in registered | shipped:
            raise UserError(
                f"launcher={name} is unknown: {did_you_mean(name, registered | shipped)}"
            )
        if name == "slurm" and "submitit_slurm" not in registered:
            raise UserError(
                "launcher=slurm needs hydra-submitit-launcher, which is not installed:"
                " pip install 'kvbench[slurm]'"
            )


class VariantSweeper(Sweeper):
    """Cartesian product of the swept axes, folded as the module says."""

    def __init__(self, params: Mapping[str, object] | None = None) -> None:
        """Sweep `params` (axis -> values as on the command line) beside the command line's own."""
        if params is not None and not isinstance(params, Mapping):
            raise UserError(f"hydra.sweeper.params={params!r} is not a node of axes and values")
        self.params = dict(params or {})
        self.hydra_context: HydraContext | None = None
        self.config: DictConfig | None = None
        self.launcher: Launcher | None = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Remember Hydra's context and start the configured launcher."""
        self.hydra_context = hydra_context
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Sequence[JobReturn]:
        """Launch every job, after all of them proved to be valid plans.

        Raises:
            UserError: a job cannot be planned; nothing was launched.
            Exception: the first job that failed raises its own, once all jobs have ended.
        """
        assert self.hydra_context is not None and self.launcher is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        swept = hydra_words(f"{axis}={values}" for axis, values in self.params.items())
        jobs = folded_jobs(parser.parse_overrides(swept + arguments))
        if isinstance(self.launcher, RayLauncher):
            models = dict.fromkeys(self._plan(job).model for job in jobs)
            jobs = dealt(jobs, self.launcher.shards_for(list(models)))
        else:
            jobs = dealt(jobs, 1)
        plans = [self._plan(job) for job in jobs]
        returns: Sequence[JobReturn] = self.launcher.launch(jobs, initial_job_idx=0)
        for job_return in returns:
            if job_return.status is not JobStatus.COMPLETED:
                raise failure_of(job_return)
        _results.get().extend(
            JobResult(plan, job_return.return_value)
            for plan, job_return in zip(plans, returns, strict=True)
        )
        return returns

    def _plan(self, job: list[str]) -> Plan:
        assert self.hydra_context is not None and self.config is not None
        config = self.hydra_context.config_loader.load_sweep_config(self.config, job)
        with open_dict(config):
            task = list(config.hydra.overrides.task)
            del config["hydra"]
        return plan_from_config(config, task)


def folded_jobs(overrides: Sequence[Override]) -> list[list[str]]:
    """Split sweep axes into jobs and, inside each job, variants.

    Returns:
        Override strings of each job, in the order of the command line with the last axis fastest;
        the job's variants travel as `variants=[[...], ...]`.
    """
    choices: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices[key] = [f"{key}={override.get_value_element_as_str()}"]
            if override.is_delete():
                choices[key] = [override.input_line or key]
        elif override.is_discrete_sweep():
            choices[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            raise UserError(
                f"{override.input_line}: only lists, choice(), range() and glob() can be swept"
            )
    of_variants = [axis for key, axis in choices.items() if _is_variant_axis(key)]
    of_jobs = [axis for key, axis in choices.items() if not _is_variant_axis(key)]
    if of_variants:
        variants = [list(v) for v in itertools.product(*of_variants)]
        of_jobs.append([f"variants=[{','.join(quoted_list(v) for v in variants)}]"])
    return [list(job) for job in itertools.product(*of_jobs)]


def dealt(jobs: Sequence[list[str]], shards: int) -> list[list[str]]:
    """Deal the samples of every job into `shards` jobs, unless it says how many itself.

    A job's own `shards=4` counts, or nothing does where it names its `shard`.
    """
    found = []
    for job in jobs:
        words = dict(word.split("=", 1) for word in job if word.startswith(("shard=", "shards=")))
        count = words.get("shards", str(shards))
        if "shard" in words or not count.isdecimal() or int(count) < 2:
            found.append(job)
        else:
            others = [word for word in job if not word.startswith("shards=")]
            found += [[*others, f"shards={count}", f"shard={i}"] for i in range(int(count))]
    return found


def _is_variant_axis(key: str) -> bool:
    name = key.lstrip("+~")
    return name in ("method", "budget") or name.startswith(("method.", "method/", "method@"))


def quoted_list(words: Sequence[str]) -> str:
    """Hydra's spelling of a list of strings, whatever they hold."""
    return "[" + ",".join(quoted(word) for word in words) + "]"
