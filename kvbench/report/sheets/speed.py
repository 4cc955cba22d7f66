"""Measured speeds as tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from kvbench.base.sizes import shown_bytes
from kvbench.plan.settings import Lengths
from kvbench.records.speed import Speed, SpeedRun, recorded_speeds
from kvbench.report.sheet import Cell, Heading, Sheet, SheetRow, cells

_HEADINGS = (
    Heading("method"),
    Heading("prefill tokens/s", "prefill\ntokens/s"),
    Heading("compress s", "compress\ns"),
    Heading("decode tokens/s", "decode\ntokens/s"),
    Heading("cache held", "cache\nheld"),
    Heading("ratio_bytes", "ratio_\nbytes"),
    Heading("held while decoding", "while\ndecoding"),
    Heading("peak above model", "peak above\nmodel"),
)


def speed_runs(folder: Path) -> list[SpeedRun]:
    """Read what `analysis=speed` left in a run folder, oldest first.

    Of runs of the same model, lengths and machine there is one, with each variant's newest numbers.
    """
    found: list[SpeedRun] = []
    for run in recorded_speeds(folder):
        same = [i for i, other in enumerate(found) if _conditions(other) == _conditions(run)]
        if not same:
            found.append(run)
            continue
        speeds = {speed.label: speed for speed in (*found[same[0]].speeds, *run.speeds)}
        found[same[0]] = replace(run, speeds=tuple(speeds.values()))
    return found


def _conditions(run: SpeedRun) -> tuple[Any, ...]:
    return run.model, run.weights, run.lengths, run.machine, run.versions


def speed_sheet(run: SpeedRun) -> Sheet:
    """Return one row a variant."""
    lengths = run.lengths
    rows = tuple(
        SheetRow((Cell(speed.label, speed.reader or ""), *cells(*_numbers(speed, lengths))))
        for speed in run.speeds
    )
    notes = (
        f"{lengths.context} prompt tokens, {lengths.generate} generated, batch 1; medians of"
        f" {lengths.repeats} rounds after one to warm up.",
        "Decoding is timed from the second token on: the first comes from the prefill.",
        "Caches are read as they are stored, below each name by what; held while decoding: the"
        " cache, and the tail with its head-room.",
    )
    title = f"Speed of {run.model} ({run.weights})"
    return Sheet(title, _HEADINGS, rows, notes=notes, card=speed_card(run))


def speed_card(run: SpeedRun) -> tuple[str, ...]:
    """Machine and versions of a measurement."""
    machine = [f"{name} {value}" for name, value in run.machine.items() if value is not None]
    versions = [f"{name} {run.versions.get(name)}" for name in ("kvbench", "torch", "transformers")]
    return ", ".join(machine), ", ".join(versions)


def _numbers(speed: Speed, lengths: Lengths) -> list[str]:
    decoded = lengths.generate - 1
    return [
        f"{lengths.context / speed.prefill_s:.1f}",
        f"{speed.compress_s:.3f}",
        f"{decoded / speed.decode_s:.2f}",
        shown_bytes(speed.cache_bytes),
        f"{speed.cache_bytes / speed.native_bytes:.3f}",
        "-" if speed.decode_bytes is None else shown_bytes(speed.decode_bytes),
        "-" if speed.peak_bytes is None else shown_bytes(speed.peak_bytes),
    ]
