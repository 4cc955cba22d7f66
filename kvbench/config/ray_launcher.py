"""`launcher=ray`: jobs on a pool of actors, each with the GPUs its model needs, or on the CPU.

An actor is a process that keeps its model between jobs. Where one is killed, another takes its
place and its job: what the killed one recorded is found in the run folder, so nothing is computed
twice. Knows nothing of methods or records.
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

from kvbench.base.checks import check_whole_number
from kvbench.base.errors import UserError
from kvbench.base.progress import Progress
from kvbench.base.sizes import shown_bytes
from kvbench.model.loading import weight_bytes
from kvbench.model.spec import ModelSpec

SHARDS_PER_ACTOR = 4
"""Jobs that each actor's share of the samples is cut into, so that none waits long for the last."""

ACTORS_ON_CPU = 2

WEIGHTS_SHARE = 0.85
"""Of a GPU's memory that weights may fill: prompts, caches and activations take the rest."""

_ANSWER_S = 60
"""Seconds in which a cluster whose GPUs are free tells their memory."""


@dataclass(frozen=True)
class Machine:
    """One machine of a cluster: what all its processes together may take."""

    cores: int
    gpus: int


@dataclass(frozen=True)
class Pool:
    """Actors, and what each of them takes."""

    actors: int
    cores: int
    gpus: float
    """A whole number, or a share of one."""


def pool(
    machines: Sequence[Machine], actors: int | None, gpus: int, why: str | None = None
) -> Pool:
    """Divide a cluster among actors, each of which fits on one machine.

    Args:
        machines: of the cluster.
        actors: how many; None: as many as the GPUs serve, without GPUs `ACTORS_ON_CPU`.
        gpus: of each actor; 0 on a cluster without.
        why: who needs so many GPUs, for the complaint; None: the user says so. Otherwise actors
            that need one share it where there are more of them than GPUs.

    Raises:
        UserError: the cluster can never hold them.
    """
    most = max(machine.gpus for machine in machines)
    if gpus > most:
        raise UserError(
            f"{why or f'launcher.gpus_per_actor={gpus}'}: no machine of the cluster has more than"
            f" {most}, take fewer with launcher.gpus_per_actor or another cluster"
        )
    seats = sum(machine.gpus // gpus for machine in machines) if gpus else 0
    actors = actors or seats or ACTORS_ON_CPU
    sharing = math.ceil(actors / seats) if gpus == 1 and why is not None else 1
    if gpus and actors > seats * sharing:
        raise UserError(
            f"launcher.actors={actors} with {gpus} GPUs each: the cluster has room for {seats}"
        )
    for cores in range(max(machine.cores for machine in machines), 0, -1):
        room = (
            min(m.cores // cores, m.gpus // gpus * sharing if gpus else m.cores) for m in machines
        )
        if sum(room) >= actors:
            return Pool(actors, cores, gpus if sharing == 1 else 1 / sharing)
    raise UserError(
        f"launcher.actors={actors}: each takes a core beside its GPUs, and the cluster has"
        f" {sum(machine.cores for machine in machines)}, give fewer"
    )


def gpus_for(model: ModelSpec, gpu_bytes: int) -> int:
    """GPUs of `gpu_bytes` that a model's weights need beside what it computes.

    Raises:
        UserError: several, and the model is not to be spread.
    """
    weights = weight_bytes(model)
    gpus = math.ceil(weights / (gpu_bytes * WEIGHTS_SHARE))
    if gpus > 1 and model.device_map is None:
        raise UserError(
            f"model {model.name} weighs {shown_bytes(weights)} and a GPU holds"
            f" {shown_bytes(gpu_bytes)}: set model.device_map=auto to spread it over {gpus}"
        )
    return gpus


def gpu_memory() -> int | None:
    """Bytes of the first GPU that this process sees; None where torch sees none."""
    import torch

    if not torch.cuda.is_available():
        return None
    return int(torch.cuda.get_device_properties(0).total_memory)


class RayLauncher(Launcher):
    """Runs the jobs of a sweep on Ray actors."""

    def __init__(
        self,
        actors: int | None = None,
        gpus_per_actor: int | str = "auto",
        address: str | None = None,
        retries: int = 3,
    ) -> None:
        """Start Ray, or join a cluster.

        Args:
            actors: processes; None: as many as the GPUs of the cluster serve, without GPUs
                `ACTORS_ON_CPU`.
            gpus_per_actor: GPUs that each is given; `auto`: as many as its model needs.
            address: of a running cluster; None: this machine alone.
            retries: times that a job is tried again after its actor was killed.

        Raises:
            UserError: Ray is not installed or not reachable, or a number is out of range.
        """
        check_whole_number("launcher.actors", actors, optional=True)
        if gpus_per_actor != "auto":
            check_whole_number("launcher.gpus_per_actor", gpus_per_actor)
        check_whole_number("launcher.retries", retries, least=0)
        self._ray = _started(address)
        self._wanted = (actors, gpus_per_actor)
        self._pool = Pool(1, 1, 0)
        self._retries = retries

    def shards_for(self, models: Sequence[ModelSpec]) -> int:
        """Divide the cluster for these models; returns the jobs that samples are to be dealt into.

        Raises:
            UserError: it can never hold them.
        """
        actors, gpus = self._wanted
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        machines = [
            Machine(int(held.get("CPU", 0)), int(held.get("GPU", 0)))
            for held in (node["Resources"] for node in alive)
        ]
        why = None
        if isinstance(gpus, str):
            gpus, why = self._gpus_needed(models) if any(m.gpus for m in machines) else (0, None)
        self._pool = pool(machines, actors, gpus, why)
        return self._pool.actors * SHARDS_PER_ACTOR

    def _gpus_needed(self, models: Sequence[ModelSpec]) -> tuple[int, str]:
        """GPUs that any of the models fits on, at least one, and which model needs them."""
        gpu_bytes = self._gpu_bytes()
        if gpu_bytes is None:  # they are claimed to be there, and torch cannot use them
            return 1, "each model needs 1 GPU"
        gpus, name = max((gpus_for(model, gpu_bytes), model.name) for model in models)
        return gpus, f"model {name} needs {gpus} GPUs of {shown_bytes(gpu_bytes)}"

    def _gpu_bytes(self) -> int | None:
        """Memory of one GPU of the cluster; None where it does not tell."""
        asked = self._ray.remote(num_cpus=0, num_gpus=1)(gpu_memory).remote()
        answered, _ = self._ray.wait([asked], timeout=_ANSWER_S)
        if not answered:
            self._ray.cancel(asked)
            return None
        found: int | None = self._ray.get(asked)
        return found

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
        actors = min(self._pool.actors, len(job_overrides))
        idle = [self._actor() for _ in range(actors)]
        waiting = deque(range(len(job_overrides)))
        running: dict[Any, tuple[Any, int]] = {}
        killed = [0] * len(job_overrides)
        returns: dict[int, JobReturn] = {}
        with Progress(f"ray, {actors} actors, jobs", len(job_overrides)) as progress:
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
        remote = self._ray.remote(num_cpus=self._pool.cores, num_gpus=self._pool.gpus)(_Worker)
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
