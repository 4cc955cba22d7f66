"""How fast a variant prefills, compresses and decodes, and what memory it takes.

`kvbench bench speed` prints what is measured here, `analysis=speed` keeps it in the run folder.

One prompt of random tokens, batch 1, a fixed number of generated tokens, no stop; caches are read
as they are stored. The first round warms up and has its memory measured; medians of the others are
counted. On GPUs each time ends when all of them do.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch

from kvbench.base import provenance
from kvbench.base.progress import Progress
from kvbench.decode.greedy import Generation, Stop, decode
from kvbench.model.loading import LoadedModel, load
from kvbench.plan.plan import Plan
from kvbench.plan.settings import Lengths
from kvbench.plan.variant import Variant
from kvbench.records.header import DataFacts
from kvbench.records.speed import Speed, SpeedRun
from kvbench.records.writer import Writer
from kvbench.report.paper.speed import SpeedNumbers
from kvbench.report.paper.table import Beside, paper_sheets
from kvbench.report.sheet import Sheet
from kvbench.report.sheets.speed import speed_sheet
from kvbench.run.caches import fitted_cache, schedule_of, shared_prefill
from kvbench.run.result import run_header

_SEED = 0
_SHORT = 64  # tokens of the prompt that nothing is measured of
_MMAP_THRESHOLD = -3  # glibc's M_MMAP_THRESHOLD


@dataclass(frozen=True)
class _Round:
    prefill_s: float
    compress_s: float
    decode_s: float
    cache_bytes: int
    native_bytes: int
    generation: Generation


def speed_sheets(plans: Sequence[Plan], progress: bool = True) -> list[Sheet]:
    """Measure plans and lay out a sheet for each, then a paper's table beside ours.

    Raises:
        UserError: the prompt does not fit the model.
    """
    runs = [measured_run(plan, progress) for plan in plans]
    sheets = [speed_sheet(run) for run in runs]
    beside = Beside.of(plans[-1].paper)
    return sheets if beside is None else [*sheets, *paper_sheets(beside, SpeedNumbers(runs))]


def record_speed(plan: Plan, progress: bool = True) -> Path:
    """Measure a plan's variants and add what was found to its run folder.

    Raises:
        UserError: the prompt does not fit the model, or the folder cannot be written to.
    """
    data = DataFacts(setting="random tokens", description="random tokens")
    devices = load(plan.model).devices
    header = run_header(plan, {task.name: 0 for task in plan.tasks}, data, devices)
    with Writer(plan.out, header) as writer:
        measured_run(plan, progress).write(writer)
    return plan.out


def measured_run(plan: Plan, progress: bool = True) -> SpeedRun:
    """Measure the speed of a plan's variants.

    Raises:
        UserError: the prompt does not fit the model.
    """
    model = load(plan.model)
    with Progress(plan.model.name, len(plan.variants), shown=progress) as display:
        speeds = measured_speeds(model, plan.variants, plan.speed, display)
    return SpeedRun(
        model=plan.model.name,
        weights="random weights" if plan.model.kind == "random" else plan.model.path,
        lengths=plan.speed,
        speeds=tuple(speeds),
        machine=provenance.machine(model.devices),
        versions=provenance.versions(),
    )


def measured_speeds(
    model: LoadedModel, variants: Sequence[Variant], lengths: Lengths, progress: Progress
) -> list[Speed]:
    """Measure variants one after the other.

    Raises:
        UserError: the prompt does not fit the model's context.
    """
    model.check_length(lengths.context, lengths.generate)
    generator = torch.Generator().manual_seed(_SEED)
    vocabulary = int(model.network.config.vocab_size)
    ids = torch.randint(vocabulary, (lengths.context,), generator=generator)
    for variant in variants:  # whatever is made once is made before memory is measured
        _round(model, variant, ids[:_SHORT], 2)
    memory = PeakMemory(model.devices)
    peaks = []
    for variant in variants:
        progress.sample(variant.label)
        progress.phase("warming up")
        peaks.append(memory.most(partial(_round, model, variant, ids, lengths.generate)))
    found = []
    for variant, peak_bytes in zip(variants, peaks, strict=True):
        progress.sample(variant.label)
        rounds = []
        for number in range(1, lengths.repeats + 1):
            progress.phase(f"round {number} of {lengths.repeats}")
            rounds.append(_round(model, variant, ids, lengths.generate))
        progress.advance(1, 0)
        found.append(
            Speed(
                variant.label,
                variant.series,
                variant.choice,
                variant.budget,
                variant.is_baseline,
                median(r.prefill_s for r in rounds),
                median(r.compress_s for r in rounds),
                median(r.decode_s for r in rounds),
                rounds[-1].cache_bytes,
                rounds[-1].native_bytes,
                peak_bytes,
                rounds[-1].generation.decode_bytes,
                rounds[-1].generation.reader,
            )
        )
    return found


def _round(model: LoadedModel, variant: Variant, ids: torch.Tensor, generate: int) -> _Round:
    times = [_now(model)]
    prefill = shared_prefill(model, ids, [variant], schedule_of(model, len(ids), variant))
    times.append(_now(model))
    cache = fitted_cache(variant, prefill)
    times.append(_now(model))
    held, native, logits = cache.nbytes, prefill.nbytes, prefill.last_logits
    del prefill
    caches = [cache]
    del cache
    stop = Stop(frozenset(), generate)
    started = _now(model)
    (generation,) = decode(model, caches, len(ids), stop, first_logits=logits)
    decode_s = _now(model) - started
    return _Round(times[1] - times[0], times[2] - times[1], decode_s, held, native, generation)


def _now(model: LoadedModel) -> float:
    """Seconds, once the model's devices have done what they were given."""
    model.wait()
    return time.perf_counter()


class PeakMemory:
    """The most memory that work takes, beyond what was taken before any of it began.

    Of several GPUs it is the sum of what each takes at its own peak.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        """Take what is held now as the ground that is measured from."""
        self._gpus = [device for device in devices if device.type == "cuda"]
        if self._gpus:
            torch.cuda.empty_cache()
            self._ground = sum(map(torch.cuda.memory_allocated, self._gpus))
        else:
            _return_freed_memory()
            self._ground = _resident_bytes("VmRSS") or 0

    def most(self, work: Callable[[], object]) -> int | None:
        """Do the work; bytes it took at its peak, None where the system does not tell."""
        if self._gpus:
            for gpu in self._gpus:
                torch.cuda.reset_peak_memory_stats(gpu)
            work()
            return sum(map(torch.cuda.max_memory_allocated, self._gpus)) - self._ground
        with _freed_memory_returned() as known:
            known = known and _reset_resident_peak()
            work()
            peak = _resident_bytes("VmHWM") if known else None
        return None if peak is None else max(0, peak - self._ground)


@contextmanager
def _freed_memory_returned() -> Iterator[bool]:
    """Have what is freed go back to the system at once; whether it does.

    Otherwise the allocator keeps what earlier work freed, and what work takes of that is no new
    memory to the system: a peak of nothing.
    """
    if not _return_freed_memory():
        yield False
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, 64 * 1024)
    try:
        yield True
    finally:
        libc.mallopt(_MMAP_THRESHOLD, 32 * 1024 * 1024)  # where the allocator itself ends up


def _return_freed_memory() -> bool:
    """Return what the allocator keeps; whether it can (glibc)."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        return False
    return True


def _reset_resident_peak() -> bool:
    """Ask Linux to forget the process's peak; whether it did."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _resident_bytes(field: str) -> int | None:
    """VmHWM (peak) or VmRSS (now) of this process, where the system has /proc."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(x.split()[1]) for x in lines if x.startswith(f"{field}:")), None)
