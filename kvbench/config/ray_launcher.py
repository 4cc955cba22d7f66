"""`launcher=ray`: jobs on a pool of actors, one per GPU or several on the CPU.

An actor is a process that keeps its model between jobs. Where one is killed, another takes its
place and its job: what the killed one recorded is found in the run folder, so nothing is computed
twice. Knows nothing of methods or records.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Sequence
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from kvbench.base.checks import check_whole_number
from kvbench.base.errors import UserError
from kvbench.base.progress import Progress

SHARDS_PER_ACTOR = 4
"""Jobs that each actor's share of the samples is cut into, so that none waits long for the last."""

ACTORS_ON_CPU = 2


class RayLauncher(Launcher):
    """Runs the jobs of a sweep on Ray actors."""

    def __init__(
        self, actors: int | None = None, address: str | None = None, retries: int = 3
    ) -> None:
        """Start Ray, or join a cluster.

        Args:
            actors: processes; None: one per GPU of the cluster, without GPUs `ACTORS_ON_CPU`.
            address: of a running cluster; None: this machine alone.
            retries: times that a job is tried again after its actor was killed.

        Raises:
            UserError: Ray is not installed or not reachable, or a number is out of range.
        """
        check_whole_number("launcher.actors", actors, optional=True)
        check_whole_number("launcher.retries", retries, least=0)
        self._ray = _started(address)
        gpus = int(self._ray.cluster_resources().get("GPU", 0))
        self._actors = actors or gpus or ACTORS_ON_CPU
        cores = int(self._ray.cluster_resources().get("CPU", 1))
        self._resources = {
            "num_cpus": max(1, cores // self._actors),
            "num_gpus": min(1.0, gpus / self._actors) if gpus else 0,
        }
        self._retries = retries
        self.shards = self._actors * SHARDS_PER_ACTOR

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Remember what an actor needs to compose and run a job."""
        self._setting = (hydra_context, task_function, config)

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run every job and return what each came to, in their order.

        Raises:
            UserError: a job's actors were killed more often than `retries` allows.
        """
        ray = self._ray
        pool = min(self._actors, len(job_overrides))
        idle = [self._actor() for _ in range(pool)]
        waiting = deque(range(len(job_overrides)))
        running: dict[Any, tuple[Any, int]] = {}
        killed = [0] * len(job_overrides)
        returns: dict[int, JobReturn] = {}
        with Progress(f"ray, {pool} actors, jobs", len(job_overrides)) as progress:
            while waiting or running:
                while idle and waiting:
                    actor, job = idle.pop(), waiting.popleft()
                    words = list(job_overrides[job])
                    running[actor.run.remote(words, initial_job_idx + job)] = (actor, job)
                finished, _ = ray.wait(list(running), timeout=1.0)
                progress.phase(f"{len(running)} running")
                for reference in finished:
                    actor, job = running.pop(reference)
                    try:
                        returns[job] = ray.get(reference)
                    except ray.exceptions.RayActorError as error:
                        killed[job] += 1
                        if killed[job] > self._retries:
                            raise UserError(
                                f"the actors of job {job} were killed {killed[job]} times:"
                                " is there memory enough? launcher.actors=1 takes the least"
                            ) from error
                        waiting.appendleft(job)
                        actor = self._actor()
                    else:
                        progress.advance(1, 0)
                    idle.append(actor)
        for actor in idle:
            ray.kill(actor)
        return [returns[job] for job in range(len(job_overrides))]

    def _actor(self) -> Any:
        """A fresh process, ready for jobs."""
        remote = self._ray.remote(**self._resources)(_Worker)
        return remote.remote(*self._setting, Singleton.get_state())


class _Worker:
    """What an actor is: Hydra as in the starting process, and the model of its last job."""

    def __init__(
        self,
        hydra_context: HydraContext,
        task_function: TaskFunction,
        config: DictConfig,
        singletons: dict[Any, Any],
    ) -> None:
        setup_globals()
        Singleton.set_state(singletons)
        self._setting = (hydra_context, task_function, config)

    def run(self, words: list[str], number: int) -> JobReturn:
        """Run one job as Hydra's own launcher would."""
        hydra_context, task_function, config = self._setting
        job = hydra_context.config_loader.load_sweep_config(config, words)
        with open_dict(job):
            job.hydra.job.id = str(number)
            job.hydra.job.num = number
        return run_job(
            hydra_context=hydra_context,
            task_function=task_function,
            config=job,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )


def _started(address: str | None) -> Any:
    """Ray, initialized without its dashboard and usage statistics."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        remedy = "pip install 'kvbench[ray]'"
        raise UserError(f"launcher=ray needs Ray, which is not installed: {remedy}") from error
    if not ray.is_initialized():
        try:
            ray.init(address=address, include_dashboard=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError) as error:
            raise UserError(
                f"launcher.address={address}: {' '.join(str(error).split())}"
            ) from error
    return ray
