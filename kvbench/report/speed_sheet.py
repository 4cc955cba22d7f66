"""Measured speeds as a table."""

from __future__ import annotations

from collections.abc import Sequence

from kvbench.memory import shown_bytes
from kvbench.report.sheet import Heading, Sheet, SheetRow, cells
from kvbench.speed import Lengths, Speed

_HEADINGS = (
    Heading("method"),
    Heading("prefill tokens/s", "prefill\ntokens/s"),
    Heading("compress s", "compress\ns"),
    Heading("decode tokens/s", "decode\ntokens/s"),
    Heading("ms/token", "ms/\ntoken"),
    Heading("cache held", "cache\nheld"),
    Heading("ratio_bytes", "ratio_\nbytes"),
    Heading("peak above model", "peak above\nmodel"),
)


def speed_sheet(
    speeds: Sequence[Speed], lengths: Lengths, model: str, machine: Sequence[str]
) -> Sheet:
    """Return one row a variant.

    Args:
        speeds: as measured.
        lengths: what was measured.
        model: name and what its weights are.
        machine: what the numbers are worthless without: device, threads, versions.
    """
    rows = tuple(SheetRow(cells(*_texts(speed, lengths))) for speed in speeds)
    notes = (
        f"{lengths.context} prompt tokens, {lengths.generate} generated, batch 1; medians of"
        f" {lengths.repeats} rounds after one to warm up.",
        "Decoding is timed from the second token on: the first comes from the prefill.",
    )
    return Sheet(f"Speed of {model}", _HEADINGS, rows, notes=notes, card=tuple(machine))


def _texts(speed: Speed, lengths: Lengths) -> list[str]:
    decoded = lengths.generate - 1
    return [
        speed.label,
        f"{lengths.context / speed.prefill_s:.1f}",
        f"{speed.compress_s:.3f}",
        f"{decoded / speed.decode_s:.2f}",
        f"{1000 * speed.decode_s / decoded:.2f}",
        shown_bytes(speed.cache_bytes),
        f"{speed.cache_bytes / speed.native_bytes:.3f}",
        "-" if speed.peak_bytes is None else shown_bytes(speed.peak_bytes),
    ]
