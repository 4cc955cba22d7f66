"""What is kept of measured speeds: one line of a run folder for each measurement.

Knows nothing of models or tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

from kvbench.record import BASELINE, Writer, lines_of_kind
from kvbench.record_types import fits

_KIND = "speed"


@dataclass(frozen=True)
class Lengths:
    """What is measured."""

    context: int
    """Prompt tokens."""
    generate: int
    """Generated tokens, at least two: the first comes from the prefill."""
    repeats: int
    """Rounds that are counted."""


@dataclass(frozen=True)
class Speed:
    """Medians of one variant."""

    label: str
    method: str
    """File stem in conf/method."""
    budget: str
    """As the user writes it; of the baseline: 1."""
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

    @property
    def is_baseline(self) -> bool:
        """Whether no budget counts."""
        return self.method == BASELINE

    @property
    def series(self) -> str:
        """The label without its budget."""
        return self.label.replace(f"@{self.budget}", "", 1)


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
        writer.append_line(_KIND, asdict(self))


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
_LENGTHS, _SPEED = get_type_hints(Lengths), get_type_hints(Speed)


def _speed_run(line: Mapping[str, Any]) -> SpeedRun | None:
    """The measurement of a line; None where it does not hold what readers take for granted."""
    if not _holds(line, _RUN) or not _holds(line["lengths"], _LENGTHS):
        return None
    if not all(_holds(speed, _SPEED) and _divides(speed) for speed in line["speeds"]):
        return None
    if line["lengths"]["generate"] < 2 or not line["speeds"]:
        return None
    lengths = Lengths(**{name: line["lengths"][name] for name in _LENGTHS})
    speeds = tuple(Speed(**{name: speed[name] for name in _SPEED}) for speed in line["speeds"])
    return SpeedRun(**{**{name: line[name] for name in _RUN}, "lengths": lengths, "speeds": speeds})


def _holds(node: Mapping[str, Any], hints: Mapping[str, Any]) -> bool:
    return all(fits(node.get(name), hint) for name, hint in hints.items())


def _divides(speed: Mapping[str, Any]) -> bool:
    """Whether what others are divided by is positive."""
    return all(speed[name] > 0 for name in ("prefill_s", "decode_s", "native_bytes"))
