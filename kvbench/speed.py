"""How fast a variant prefills, compresses and decodes, and what memory it takes.

One prompt of random tokens, batch 1, a fixed number of generated tokens, no stop. The first round
warms up and is not counted; medians of the others are. On a GPU each time ends when the GPU does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from kvbench.capture import capture
from kvbench.decode import Stop, decode
from kvbench.fit import fit
from kvbench.method import Needs
from kvbench.model import LoadedModel
from kvbench.plan import Variant
from kvbench.progress import Progress
from kvbench.speed_record import Lengths, Speed

_SEED = 0


@dataclass(frozen=True)
class _Round:
    prefill_s: float
    compress_s: float
    decode_s: float
    cache_bytes: int
    native_bytes: int


def measured_speed(
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
    found = []
    for variant in variants:
        progress.sample(variant.label)
        progress.phase("warming up")
        _round(model, variant, ids, lengths.generate)
        memory = _Peak(model.device)
        rounds = []
        for number in range(1, lengths.repeats + 1):
            progress.phase(f"round {number} of {lengths.repeats}")
            rounds.append(_round(model, variant, ids, lengths.generate))
        progress.advance(1, 0)
        found.append(
            Speed(
                variant.label,
                variant.choice,
                str(variant.budget),
                median(r.prefill_s for r in rounds),
                median(r.compress_s for r in rounds),
                median(r.decode_s for r in rounds),
                rounds[-1].cache_bytes,
                rounds[-1].native_bytes,
                memory.above_start(),
            )
        )
    return found


def _round(model: LoadedModel, variant: Variant, ids: torch.Tensor, generate: int) -> _Round:
    plan = variant.method.prefill_plan(len(ids), model.geometry.layers, variant.budget)
    times = [_now(model.device)]
    prefill = capture(model, ids, variant.method.needs if plan is None else Needs(), plan)
    times.append(_now(model.device))
    with torch.inference_mode():
        cache = fit(variant.method, prefill, variant.budget)
    times.append(_now(model.device))
    held, native, logits = cache.nbytes, prefill.nbytes, prefill.last_logits
    del prefill
    caches = [cache]
    del cache
    stop = Stop(frozenset(), generate)
    started = _now(model.device)
    decode(model, caches, len(ids), stop, first_logits=logits)
    decode_s = _now(model.device) - started
    return _Round(times[1] - times[0], times[2] - times[1], decode_s, held, native)


def _now(device: torch.device) -> float:
    """Seconds, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


class _Peak:
    """The most memory taken from here on, beyond what is taken now."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._before = torch.cuda.memory_allocated(device)
        else:
            self._known = _reset_resident_peak()
            self._before = _resident_bytes("VmRSS") or 0

    def above_start(self) -> int | None:
        """Bytes; None where the system does not tell."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device) - self._before
        peak = _resident_bytes("VmHWM") if self._known else None
        return None if peak is None else max(0, peak - self._before)


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
