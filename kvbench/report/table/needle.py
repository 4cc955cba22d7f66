"""Needle runs in a table's terms: the grid of cells, accuracies, what is left of the needle.

Knows records and nothing of how a figure looks (`kvbench.report.figures.heatmap`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean

from kvbench.records.record import Record
from kvbench.report.table.table import Row, Table
from kvbench.tasks import ruler
from kvbench.tasks.haystack import grid_of
from kvbench.tasks.needle import GROUP

END = 100
"""The depth that lies inside most methods' recent window."""

GridCell = tuple[int, int]
"""(length in tokens, depth in percent)."""


@dataclass(frozen=True)
class Grid:
    """The cells of one needle task, whether there are results or not."""

    task: str
    metric: str
    """Main score of the task, whose mean over cells is the accuracy."""
    lengths: tuple[int, ...]
    depths: tuple[int, ...]
    profile: str
    """classic or chat: whether the prompt stands in the tokenizer's chat template."""


def is_needle(table: Table) -> bool:
    """Whether all tasks of a table are needles."""
    return all(task.group == GROUP for task in table.tasks)


def sized_suite(table: Table) -> str | None:
    """Name of the suite where prompts are made to a length and never cut; None elsewhere."""
    names = {GROUP: "Needle-in-a-Haystack", ruler.GROUP: "RULER's synthetic tasks"}
    return names.get(table.tasks[0].group.partition(" ")[0])


def grids(table: Table) -> list[Grid]:
    """Return the grid of each needle task, of all its jobs together."""
    found = []
    for task in table.tasks:
        asked = [
            header.task_settings
            for header in table.headers
            if any(named.name == task.name for named in header.tasks)
        ]
        axes = [
            {value for config in asked for value in grid_of(name, config[name])}
            for name in ("lengths", "depths")
        ]
        records = [r for row in table.rows for r in row.records if r.task == task.name]
        metric = next((r.metric for r in records if r.metric), "score")
        lengths, depths = (tuple(sorted(axis)) for axis in axes)
        found.append(Grid(task.name, metric, lengths, depths, asked[-1]["profile"]))
    return found


def cell_of(record: Record) -> GridCell:
    """Where a record stands in its grid."""
    return record.scored_fields["length"], record.scored_fields["depth"]


def cell_scores(row: Row, grid: Grid, metric: str | None = None) -> dict[GridCell, float]:
    """Return the scores in [0, 1] of the cells done; of the main metric unless another is named."""
    return {
        cell_of(record): record.scores[metric or grid.metric]
        for record in row.records
        if record.task == grid.task and (metric or grid.metric) in record.scores
    }


def accuracy(
    scores: Mapping[GridCell, float], chosen: Callable[[GridCell], bool] = lambda cell: True
) -> float | None:
    """Mean over the chosen cells that are done; None where there is none."""
    values = [score for cell, score in scores.items() if chosen(cell)]
    return fmean(values) if values else None


def before_the_end(cell: GridCell) -> bool:
    """Whether a cell's needle lies before depth 100."""
    return cell[1] < END


def kept_by_layer(row: Row, grid: Grid) -> dict[int, list[float]]:
    """Return depth -> share of the needle's tokens kept in each layer, mean over lengths.

    Of several needles, those asked for count.
    """
    by_depth: dict[int, list[list[float]]] = {}
    for record in row.records:
        if record.task == grid.task:
            layers = [v for k, v in record.span_kept.items() if k.startswith("needle")]
            by_depth.setdefault(cell_of(record)[1], []).extend(layers)
    return {
        depth: [fmean(shares) for shares in zip(*of_depth, strict=True)]
        for depth, of_depth in sorted(by_depth.items())
        if of_depth
    }


def needle_columns(
    table: Table,
) -> list[tuple[str, str, tuple[float | None, ...], tuple[bool, ...]]]:
    """Return name, short name, values x100 by row, and by row whether cells are missing.

    For each task: accuracy with and without depth 100, then the mean of each other score.
    """
    columns: list[tuple[str, str, list[float | None]]] = []
    partial: list[tuple[bool, ...]] = []
    for grid, task in zip(grids(table), table.tasks, strict=True):
        scores = [cell_scores(row, grid) for row in table.rows]
        of_task = f"{grid.task} " if len(table.tasks) > 1 else ""
        short_task = f"{grid.task}\n" if of_task else ""
        columns.append(
            (f"{of_task}accuracy", f"{short_task}accu-\nracy", [accuracy(s) for s in scores])
        )
        without = [accuracy(s, before_the_end) for s in scores]
        name = f"{of_task}accuracy without depth {END}"
        columns.append((name, f"{short_task}without\n{END}%", without))
        others = dict.fromkeys(m for r in table.rows for x in r.records for m in x.scores)
        for metric in others:
            if not of_task and metric != grid.metric:
                means = [accuracy(cell_scores(row, grid, metric)) for row in table.rows]
                columns.append((metric, metric, means))
        lacking = tuple(table.missing(row, task) > 0 for row in table.rows)
        partial += [lacking] * (len(columns) - len(partial))
    return [
        (name, short, tuple(None if v is None else 100 * v for v in values), lacking)
        for (name, short, values), lacking in zip(columns, partial, strict=True)
    ]


def needle_notes(table: Table) -> list[str]:
    """Return what a reader must know of the grid before comparing rows."""
    lines = []
    for grid in grids(table):
        cells = len(grid.lengths) * len(grid.depths)
        lines.append(
            f"{grid.task}: {cells} cells, {_range(grid.lengths)} tokens x depths"
            f" {_range(grid.depths)}%, profile {grid.profile}; accuracy is the mean {grid.metric}"
            " over cells, x100."
        )
    lines.append(
        f"A needle at depth {END}% stands among the newest tokens, which most methods keep: see the"
        " column without it."
    )
    return lines


def _range(values: tuple[int, ...]) -> str:
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"
