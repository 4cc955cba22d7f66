"""The figures of a needle run: heatmaps over length and depth, lines, what each layer keeps.

Reads tables; the colors and limits are those of the published heatmaps (KVCache-Factory,
`visualize.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from kvbench.compress.budget import Budget
from kvbench.report.figures import style as figures
from kvbench.report.table.needle import (
    Grid,
    accuracy,
    before_the_end,
    cell_scores,
    grids,
    is_needle,
    kept_by_layer,
)
from kvbench.report.table.table import Row, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RED, AMBER, GREEN = "#F0496E", "#EBB839", "#0CD79F"

TICKS = 8
"""Labels on an axis at most."""

MARKED = 20
"""Points on a line up to which each has a marker."""

Matrix = list[list[float | None]]
"""Rows of values in [0, 1], the first drawn at the top; None: no result."""

DrawRow = Callable[["Axes", Row], Any]
"""Draws one row of a table; returns what its color bar is made of."""


def needle_figures(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Draw every figure of the needle tables of a run.

    Args:
        tables: of one run; those of other suites are passed over.
        folder: where to write; made if there is something to draw.

    Returns:
        The files written, PNG, PDF and SVG of each figure.
    """
    drawn = [(table, grid) for table in tables if is_needle(table) for grid in grids(table)]
    if not drawn:
        return []
    paths: list[Path] = []
    used: set[str] = set()
    with figures.style():
        for table, grid in drawn:
            name = grid.task
            while name in used:  # the same task under another protocol or with another model
                name += "-2"
            used.add(name)
            for row in table.rows:
                one = one_heatmap(table, grid, row)
                label = figures.file_name(row.label)
                paths += figures.save(one, folder, f"{name}-heatmap-{label}")
            paths += figures.save(heatmaps(table, grid), folder, f"{name}-heatmaps")
            paths += figures.save(_lines(table, grid), folder, f"{name}-lines")
            if any(kept_by_layer(row, grid) for row in table.rows):
                paths += figures.save(_spans(table, grid), folder, f"{name}-kept")
    return paths


def matrix(row: Row, grid: Grid) -> Matrix:
    """Return the cells' scores: a line for each depth, a column for each length."""
    scores = cell_scores(row, grid)
    return [[scores.get((length, depth)) for length in grid.lengths] for depth in grid.depths]


def one_heatmap(table: Table, grid: Grid, row: Row) -> Any:
    """Draw the scores of one row by length and depth, as a figure."""
    drawn = figures.figure(figures.COLUMN_INCHES, 2.0)
    axes = drawn.add_subplot()
    mesh = _scores(axes, row, grid)
    axes.set_xlabel("length (tokens)")
    axes.set_ylabel("depth (%)")
    _color_bar(drawn, mesh, [axes], 1, grid.metric)
    axes.set_title(f"{_model(table)}, {row.label}\n{_facts(row, grid)}")
    return drawn


def heatmaps(table: Table, grid: Grid) -> Any:
    """Methods x budgets, with one color bar."""

    def panel(axes: Axes, row: Row) -> Any:
        ratio = row.ratio("ratio_bytes")
        share = "" if ratio is None else f" ({ratio:.3f})"
        axes.set_title(f"{row.label}{share}: {_accuracy(row, grid)}")
        return _scores(axes, row, grid)

    title = f"{_model(table)}, {grid.task}: {grid.metric}\nvariant (share of the bytes): accuracy"
    return _multiples(table, grid, panel, ("length (tokens)", "depth (%)"), title, grid.metric)


def _spans(table: Table, grid: Grid) -> Any:
    """Methods x budgets: which layers keep the needle at which depth."""

    def panel(axes: Axes, row: Row) -> Any:
        kept = kept_by_layer(row, grid)
        layers = max((len(shares) for shares in kept.values()), default=1)
        rows: Matrix = [
            [kept[depth][layer] if depth in kept else None for depth in grid.depths]
            for layer in range(layers)
        ]
        mesh = _heatmap(axes, rows, "cividis")
        axes.set_ylim(0, layers)  # the first layer at the bottom
        _ticks(axes.xaxis, grid.depths, 0.5)
        _ticks(axes.yaxis, range(layers), 0.5, most=4)
        shares = [share for line in rows for share in line if share is not None]
        axes.set_title(f"{row.label}: " + (f"{100 * fmean(shares):.0f}% kept" if shares else "-"))
        return mesh

    title = f"{_model(table)}, {grid.task}\nvariant: share of the needle's tokens kept, by layer"
    return _multiples(table, grid, panel, ("depth (%)", "layer"), title, "share kept")


def _multiples(
    table: Table, grid: Grid, panel: DrawRow, labels: tuple[str, str], title: str, unit: str
) -> Any:
    """Lay out one panel per row of the table: methods down, budgets across, the baseline first."""
    methods = list(dict.fromkeys(row.series for row in table.rows))
    swept: list[Budget | None] = [row.budget for row in table.rows if not row.is_baseline]
    budgets = list(dict.fromkeys(swept)) or [None]
    places: dict[tuple[str, Budget | None], Row]
    places = {(row.series, row.budget): row for row in table.rows}
    baseline = {row.series: row for row in table.rows if row.is_baseline}
    wide = figures.COLUMN_INCHES if len(budgets) == 1 else figures.PAGE_INCHES
    drawn = figures.figure(wide, 0.72 * len(methods) + 0.85)
    all_axes = drawn.subplots(len(methods), len(budgets), sharex=True, sharey=True, squeeze=False)
    mesh = None
    for i, method in enumerate(methods):
        for j, budget in enumerate(budgets):
            axes = all_axes[i, j]
            row = baseline.get(method) or places.get((method, budget))
            if row is None:
                axes.axis("off")
                continue
            mesh = panel(axes, row)
            axes.title.set_fontsize(6 if len(budgets) < 4 else 5)
    drawn.suptitle(title, fontsize=7)
    drawn.supxlabel(labels[0], fontsize=7)
    drawn.supylabel(labels[1], fontsize=7)
    _color_bar(drawn, mesh, list(all_axes.flat), len(methods), unit)
    return drawn


def _lines(table: Table, grid: Grid) -> Any:
    """Accuracy by depth and by length, a line for each variant."""
    drawn = figures.figure(figures.COLUMN_INCHES, 2.0 + 0.11 * ((len(table.rows) + 1) // 2))
    both = drawn.subplots(1, 2, sharey=True)
    for axes, part, values, label in (
        (both[0], 1, grid.depths, "depth (%)"),
        (both[1], 0, grid.lengths, "length (tokens)"),
    ):
        for number, row in enumerate(table.rows):
            look = _line_style(row, number, marked=len(values) <= MARKED)
            by_value = _means(cell_scores(row, grid), part)
            places = [values.index(value) for value in by_value]
            axes.plot(places, list(by_value.values()), label=row.label, **look)
        _ticks(axes.xaxis, values, 0.0, most=5)
        axes.set_xlabel(label)
        axes.set_ylim(-0.03, 1.03)
        axes.grid(linewidth=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    both[0].set_ylabel(f"{grid.metric}, mean over cells")
    drawn.suptitle(f"{_model(table)}, {grid.task}", fontsize=7)
    drawn.legend(*both[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return drawn


def _means(scores: Mapping[tuple[int, int], float], part: int) -> dict[int, float]:
    """Mean score by length (part 0) or depth (part 1), ascending."""
    values = sorted({cell[part] for cell in scores})
    return {v: fmean(s for cell, s in scores.items() if cell[part] == v) for v in values}


def _line_style(row: Row, number: int, marked: bool) -> dict[str, Any]:
    if row.is_baseline:
        return {"color": "black", "linestyle": "--", "zorder": 3}
    turn, place = divmod(number - 1, len(figures.PALETTE))
    return {
        "color": figures.PALETTE[place],
        "marker": "osD^vPX*"[place] if marked else "",
        "linestyle": ("-", ":", "-.")[turn % 3],
    }


def _scores(axes: Axes, row: Row, grid: Grid) -> Any:
    """Draw the scores of one row of the table, depth 0 at the top."""
    from matplotlib.colors import LinearSegmentedColormap

    colors = LinearSegmentedColormap.from_list("needle", [RED, AMBER, GREEN])
    mesh = _heatmap(axes, matrix(row, grid), colors)
    _ticks(axes.xaxis, grid.lengths, 0.5)
    _ticks(axes.yaxis, grid.depths, 0.5, most=5)
    return mesh


def _heatmap(axes: Axes, rows: Matrix, colors: Any) -> Any:
    """Draw a matrix with limits 0 and 1; what is missing shows the hatched ground."""
    import numpy as np

    values = np.ma.masked_invalid([[np.nan if v is None else v for v in row] for row in rows])
    axes.set_facecolor("white")
    axes.patch.set(hatch="////////", edgecolor="#888888", linewidth=0)
    mesh = axes.pcolormesh(values, cmap=colors, vmin=0, vmax=1, rasterized=values.size > 400)
    axes.set_ylim(len(rows), 0)
    if len(rows) <= 12 and values.shape[1] <= 40:
        mesh.set(edgecolor="white", linewidth=0.4)
    return mesh


def _ticks(axis: Any, values: Sequence[int], offset: float, most: int = TICKS) -> None:
    """Label the first place of an axis and others at equal distances, `offset` beside them."""
    step = max(1, -(-(len(values) - 1) // (most - 1)))
    chosen = range(0, len(values), step)
    axis.set_ticks([i + offset for i in chosen], [str(values[i]) for i in chosen])


def _color_bar(drawn: Any, mesh: Any, axes: list[Axes], rows: int, label: str) -> None:
    if mesh is not None:
        look = {"ticks": [0, 0.5, 1], "fraction": 0.08, "aspect": 18 * rows}
        figures.color_bar(drawn, mesh, axes, label, **look)


def _model(table: Table) -> str:
    return table.headers[-1].model.name


def _facts(row: Row, grid: Grid) -> str:
    """Measured share of bytes, and accuracies."""
    without = accuracy(cell_scores(row, grid), before_the_end)
    text = f"accuracy {_accuracy(row, grid)}{_bytes(row)}"
    return text if without is None else f"{text}, without depth 100: {100 * without:.1f}"


def _accuracy(row: Row, grid: Grid) -> str:
    overall = accuracy(cell_scores(row, grid))
    return "no result" if overall is None else f"{100 * overall:.1f}"


def _bytes(row: Row) -> str:
    ratio = row.ratio("ratio_bytes")
    return "" if ratio is None else f" ({ratio:.3f} of the bytes)"
