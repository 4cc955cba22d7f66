"""What a reader asked to see."""

from __future__ import annotations

from dataclasses import dataclass

RATIOS = (
    "ratio_bytes",
    "ratio_decoding",
    "kept_ratio",
    "ratio_formula15",
    "ratio_formula15_printed",
)
"""Ratios of a record; the first stands in every table."""

COMPRESSING = "compress_s"
"""What compressing costs: seconds a prompt."""


@dataclass(frozen=True)
class Look:
    """The parts of a report, and its form."""

    form: str = "terminal"
    """`terminal`, `markdown`, `csv`, `latex` or `html`."""
    per_task: bool = False
    """One column per task instead of one per group."""
    ratios: bool = False
    """A table of every ratio; CSV and HTML always have them all."""
    intervals: bool = False
    """The 95% interval of each score; CSV and HTML always have it."""
    differences: bool = False
    """A table of differences to the reference as well."""
    reference: str | None = None
    """Label of the row to compare with; None: FullKV."""
    samples: int = 25
    """Samples of each task that the HTML page shows."""
    colored: bool = False
    """Bold face and colors of a terminal."""
