"""What is kept of measured speeds: one line of a run folder for each measurement.

Knows nothing of models or tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

from kvbench.base.errors import UserError
from kvbench.compress.budget import Budget
from kvbench.plan.settings import Lengths
from kvbench.records.fields import fits
from kvbench.records.header import read_variant
from kvbench.records.reader import lines_of_kind
from kvbench.records.writer import Writer

_KIND = "speed"


@dataclass(frozen=True)
class Speed:
    """Medians of one variant."""

    label: str
    series: str
    """The label without its budget."""
    method: str
    """File stem in conf/method."""
    budget: Budget
    """What may be kept; of the baseline: everything."""
    is_baseline: bool
    """Whether no budget counts."""
    prefill_s: float
    compress_s: float
    """The search for the budget included."""
    decode_s: float
    """From the second token on."""
    cache_bytes: int
    """What the compressed prompt holds: the memory that persists."""
    native_bytes: int
    """The full cache of the same prompt."""
    peak_bytes: int | None
    """Most memory above the model's own, over prefill, compression and decoding; None where the
    system does not tell."""
    decode_bytes: int | None = None
    """Bytes of every tensor held while decoding, at most; None in older runs."""
    reader: str | None = None
    """What decoding read, and by what; None in older runs."""


@dataclass(frozen=True)
class SpeedRun:
    """The variants of one model, measured on one machine."""

    model: str
    weights: str
    """Where they are from; or `random weights`."""
    lengths: Lengths
    speeds: tuple[Speed, ...]
    machine: Mapping[str, Any]
    """Device, threads, memory, ..., without which the numbers are worthless."""
    versions: Mapping[str, Any]

    def write(self, writer: Writer) -> None:
        """Append it to a shard; it is on disk when this returns."""
        speeds = [
            {**asdict(speed), "budget": str(speed.budget), "budget_unit": speed.budget.unit}
            for speed in self.speeds
        ]
        writer.append_line(_KIND, {**asdict(self), "speeds": speeds})


def recorded_speeds(folder: Path) -> Iterator[SpeedRun]:
    """Yield the measurements that a run folder holds, oldest first; damaged lines are skipped."""
    for line in lines_of_kind(folder, _KIND):
        run = _speed_run(line)
        if run is not None:
            yield run


_RUN: Mapping[str, Any] = {
    "model": str,
    "weights": str,
    "lengths": dict[str, int],
    "speeds": list[dict[str, Any]],
    "machine": dict[str, Any],
    "versions": dict[str, Any],
}
_LENGTHS = get_type_hints(Lengths)
_SPEED: Mapping[str, Any] = {
    "label": str,
    "method": str,
    "budget": str,
    "prefill_s": float,
    "compress_s": float,
    "decode_s": float,
    "cache_bytes": int,
    "native_bytes": int,
    "peak_bytes": int | None,
    "decode_bytes": int | None,
    "reader": str | None,
}


def _speed_run(line: Mapping[str, Any]) -> SpeedRun | None:
    """The measurement of a line; None where it does not hold what readers take for granted."""
    if not _holds(line, _RUN) or not _holds(line["lengths"], _LENGTHS):
        return None
    if not all(_holds(speed, _SPEED) and _divides(speed) for speed in line["speeds"]):
        return None
    if not line["speeds"]:
        return None
    try:
        lengths = Lengths(**{name: line["lengths"][name] for name in _LENGTHS})
        speeds = tuple(_speed(speed) for speed in line["speeds"])
    except (UserError, ValueError):
        return None
    return SpeedRun(**{**{name: line[name] for name in _RUN}, "lengths": lengths, "speeds": speeds})


def _speed(line: Mapping[str, Any]) -> Speed:
    variant = read_variant(line)
    known: dict[str, Any] = {
        name: line.get(name) for name in _SPEED if name not in ("label", "method", "budget")
    }
    return Speed(
        label=variant.label,
        series=variant.series,
        method=variant.method,
        budget=variant.budget,
        is_baseline=variant.is_baseline,
        **known,
    )


def _holds(node: Mapping[str, Any], hints: Mapping[str, Any]) -> bool:
    return all(fits(node.get(name), hint) for name, hint in hints.items())


def _divides(speed: Mapping[str, Any]) -> bool:
    """Whether what others are divided by is positive."""
    return all(speed[name] > 0 for name in ("prefill_s", "decode_s", "native_bytes"))
