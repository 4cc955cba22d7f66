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
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.plugin import Plugin
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from kvbench.consent import checked_compositions
from kvbench.errors import UserError
from kvbench.hydra_errors import one_line
from kvbench.overrides import hydra_words, quoted
from kvbench.plan import Plan
from kvbench.planning import plan_from_config
from kvbench.ray_launcher import RayLauncher
from kvbench.suggest import did_you_mean

if TYPE_CHECKING:
    from kvbench.run import Summary


def run_words(words: Sequence[str], job: TaskFunction | None = None) -> None:
    """Run what Hydra's own words and flags ask for.

    Args:
        words: overrides and flags, as after `kvbench run`.
        job: runs one job's configuration and returns its Summary; default: `run_job`.

    Raises:
        UserError: anything the user got wrong, Hydra's own complaints included.
    """
    # Hydra takes plugins from the namespace package hydra_plugins only; this name needs no such
    # package beside ours.
    ours: tuple[type[Plugin], ...] = (VariantSweeper, RayLauncher)
    for plugin in ours:
        Plugins.instance().class_name_to_class[f"hydra_plugins.kvbench.{plugin.__name__}"] = plugin
    entry = hydra.main(config_path="pkg://kvbench.conf", config_name="config", version_base="1.3")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise, rather than print a shortened traceback and exit
    arguments = sys.argv
    words = hydra_words(words)
    _check_flags(words)
    _check_launcher(words)
    sys.argv = ["kvbench run", *words]  # where Hydra reads them
    try:
        with checked_compositions():
            entry(job or run_job)()
    except HydraException as error:
        raise UserError(one_line(error, words)) from error
    except OmegaConfBaseException as error:
        raise UserError(" ".join(str(error).split())) from error
    finally:
        sys.argv = arguments


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


def run_job(config: DictConfig) -> Summary:
    """Execute one job: all variants of its plan over all its samples."""
    from kvbench.run import Summary, execute

    plan = plan_from_config(config, list(HydraConfig.get().overrides.task))
    if plan.analysis is None:
        return execute(plan)
    from kvbench.analysis.run import analyse

    written = analyse(plan)
    names = [path.name for path in written if path != plan.out]
    print(f"{plan.out}: {', '.join(names) or plan.analysis}; kvbench report {plan.out}")
    return Summary(0, 0, 0)


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
        jobs = dealt(jobs, getattr(self.launcher, "shards", 1))
        plans = [self._plan(job) for job in jobs]
        returns: Sequence[JobReturn] = self.launcher.launch(jobs, initial_job_idx=0)
        for job_return in returns:
            if job_return.status is not JobStatus.COMPLETED:
                raise job_return._return_value  # the property would print a line first
        answered = [
            (plan.out, job_return.return_value)
            for plan, job_return in zip(plans, returns, strict=True)
            if plan.analysis is None
        ]
        _say_what_was_done([out for out, _ in answered], [summary for _, summary in answered])
        return returns

    def _plan(self, job: list[str]) -> Plan:
        assert self.hydra_context is not None and self.config is not None
        config = self.hydra_context.config_loader.load_sweep_config(self.config, job)
        with open_dict(config):
            task = list(config.hydra.overrides.task)
            del config["hydra"]
        return plan_from_config(config, task)


def _say_what_was_done(folders: Sequence[Path], summaries: Sequence[Summary]) -> None:
    """Print one line for each run folder; exit 1 where a result failed."""
    for folder in dict.fromkeys(folders):
        here = [s for f, s in zip(folders, summaries, strict=True) if f == folder]
        computed, failed, known = (
            sum(getattr(s, name) for s in here) for name in ("computed", "failed", "known")
        )
        print(
            f"{folder}: {computed} results recorded, {failed} of them failed, {known} known before;"
            f" kvbench report {folder}"
        )
        if before := sum(s.failed_before for s in here):
            print(f"{before} results failed before: --retry-failed computes them again")
    if any(s.failed for s in summaries):
        sys.exit(1)


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
        of_jobs.append([f"variants=[{','.join(_quoted_list(v) for v in variants)}]"])
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


def _quoted_list(words: Sequence[str]) -> str:
    """Hydra's spelling of a list of strings, whatever they hold."""
    return "[" + ",".join(quoted(word) for word in words) + "]"
