"""How figures look and are saved: one style, three formats, the same bytes from the same numbers.

Knows nothing of records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.base.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = "figures"
"""Where in a run folder every figure goes."""

COLUMN_INCHES = 3.3
"""Width of one column of a two-column paper."""

PAGE_INCHES = 6.9
"""Width of both columns."""

DPI = 300

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7F7F7F", "#882255")
"""Colors of lines: Okabe and Ito's, which color-blind readers tell apart, then two more."""

_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
    "font.size": 7,
    "axes.titlesize": 7,
    "axes.labelsize": 7,
    "axes.linewidth": 0.5,
    "xtick.labelsize": 6,
    "ytick.labelsize": 6,
    "xtick.major.size": 2,
    "ytick.major.size": 2,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "legend.fontsize": 6,
    "legend.frameon": False,
    "lines.linewidth": 1,
    "lines.markersize": 3,
    "hatch.linewidth": 0.4,
    "grid.color": "#DDDDDD",
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.hspace": 0.0,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
    "svg.hashsalt": "kvbench",
}

_UNDATED = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
}


@contextmanager
def style() -> Iterator[None]:
    """Draw and save in kvbench's style, whatever the user's matplotlib settings."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def figure(width: float, height: float) -> Figure:
    """Return an empty figure of these inches, whose parts make room for each other."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def color_bar(drawn: Figure, mesh: Any, axes: Sequence[Axes], label: str, **look: Any) -> Any:
    """Put a scale of a map's colors beside the axes that share it.

    Args:
        drawn: the figure.
        mesh: one of its maps.
        axes: those whose height it takes.
        label: what a value is.
        look: what matplotlib's `colorbar` takes as well.
    """
    bar = drawn.colorbar(mesh, ax=list(axes), pad=0.02, **look)
    bar.set_label(label)
    bar.outline.set_visible(False)
    return bar


def save(drawn: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG, PDF and SVG; called inside `style()`.

    Returns:
        The three files.

    Raises:
        UserError: the folder cannot be written to.
    """
    paths = [folder / f"{name}.{form}" for form in _UNDATED]
    drawn.draw_without_rendering()
    drawn.set_layout_engine("none")  # laid out once, not once for each format
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            form = path.suffix[1:]
            drawn.savefig(path, format=form, dpi=DPI, metadata=_UNDATED[form])
    except OSError as error:
        raise UserError(f"cannot write figures to {folder} ({error.strerror})") from error
    return paths


def file_name(label: str) -> str:
    """A label as part of a file's name: `snapkv@0.2[window=8]` -> `snapkv-0.2-window-8`."""
    kept = "".join(c if c.isalnum() or c in "._" else "-" for c in label)
    return "-".join(part for part in kept.split("-") if part)
