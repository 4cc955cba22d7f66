"""One self-contained HTML page of a run: no network, no build step, readable without scripts.

Everything that a model or a user wrote is escaped by the template engine; the charts are ours.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from kvbench.report.figures import style as figures
from kvbench.report.figures.curves import Series, drawn_columns, series_of
from kvbench.report.figures.heatmap import heatmaps
from kvbench.report.look import Look
from kvbench.report.page.charts import UNDATED, Chart, curves, inline
from kvbench.report.page.view import Leader, Memory, TaskView, leaders, memory, task_views
from kvbench.report.sheet import Sheet
from kvbench.report.sheets.card import protocol_card
from kvbench.report.sheets.scores import sheets_of, title
from kvbench.report.table.columns import columns_of
from kvbench.report.table.needle import grids, is_needle
from kvbench.report.table.table import Table


@dataclass(frozen=True)
class _View:
    """One table of the page."""

    title: str
    warnings: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    average: str
    """Name of the column that says most: AVG, or a needle's accuracy."""
    leaders: tuple[Leader, ...]
    sheets: tuple[Sheet, ...]
    by_task: Sheet
    series: tuple[Series, ...]
    heatmaps: tuple[Chart, ...]
    charts: tuple[Chart, ...]
    memory: tuple[Memory, ...]
    parts: tuple[str, ...]
    tasks: tuple[TaskView, ...]
    card: tuple[str, ...]
    provenance: tuple[tuple[str, str], ...]


def page(
    tables: Sequence[Table],
    look: Look,
    sheets: Sequence[Sheet] = (),
    drawings: Sequence[Path] = (),
    paper_title: str = "Beside the paper",
) -> str:
    """Write the page.

    Args:
        tables: of the run's scores; none where it measured something else.
        look: how many samples are shown, and the reference.
        sheets: a paper's table beside ours, or what else was measured; shown first.
        drawings: SVG files that belong to them.
        paper_title: heading of the two.

    Raises:
        UserError: differences to a reference are asked for that a table does not have.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"] = lambda share: f"{100 * share:.1f}%"
    template = environment.from_string(_file("page.html.jinja"))
    return template.render(
        views=[_view(table, look) for table in tables],
        sheets=sheets,
        drawings=[_drawing(path) for path in drawings],
        paper_title=paper_title,
        card=list(dict.fromkeys(line for sheet in sheets for line in sheet.card)),
        style=Markup(_file("page.css")),
        script=Markup(_file("page.js")),
    )


def _drawing(path: Path) -> Chart:
    svg = path.read_text(encoding="utf-8")
    return Chart(path.stem, Markup(inline(svg, path.stem)), wide=True)


def _file(name: str) -> str:
    return resources.files("kvbench.report.page").joinpath(name).read_text(encoding="utf-8")


def _view(table: Table, look: Look) -> _View:
    columns = columns_of(table, per_task=False)
    average = columns[0] if is_needle(table) else columns[-1]
    compared = look.reference is not None or any(row.is_baseline for row in table.rows)
    detailed = replace(look, per_task=False, ratios=True, intervals=True, differences=compared)
    sheets = sheets_of(table, detailed)
    (by_task,) = sheets_of(table, Look(per_task=True, intervals=True))
    weights = memory(table)
    series = series_of(table)
    return _View(
        title=title(table),
        warnings=tuple(n for n in sheets[0].notes if n.startswith(("This is", "Incomplete"))),
        facts=_facts(table),
        average=average.name,
        leaders=tuple(leaders(table, average)),
        sheets=tuple(sheets),
        by_task=by_task,
        series=tuple(series),
        heatmaps=tuple(_heatmaps(table)) if is_needle(table) else (),
        charts=tuple(curves(table, drawn_columns(table), series)),
        memory=tuple(weights),
        parts=tuple(dict.fromkeys(part.name for row in weights for part in row.parts)),
        tasks=tuple(task_views(table, look.samples)),
        card=tuple(protocol_card(table)),
        provenance=_provenance(table),
    )


def _heatmaps(table: Table) -> Iterator[Chart]:
    for grid in grids(table):
        out = io.StringIO()
        with figures.style():
            heatmaps(table, grid).savefig(out, format="svg", metadata=UNDATED)
        label = f"Heatmaps of {grid.task}: {grid.metric} by length and depth"
        yield Chart(label, Markup(inline(out.getvalue(), label)), wide=True)


def _facts(table: Table) -> tuple[tuple[str, str], ...]:
    samples = sum(task.samples for task in table.tasks)
    methods = {row.method for row in table.rows if not row.is_baseline}
    budgets = {row.budget for row in table.rows if not row.is_baseline}
    results = sum(len(row.records) for row in table.rows)
    counts = {
        "method": len(methods),
        "budget": len(budgets),
        "task": len(table.tasks),
        "sample": samples,
        "result": results,
    }
    return tuple((name + "s" * (n != 1), f"{n:,}") for name, n in counts.items())


def _provenance(table: Table) -> tuple[tuple[str, str], ...]:
    """What made the numbers, newest run last."""
    header = table.headers[-1]
    facts = {
        "runs": ", ".join(f"{h.run} ({h.started})" for h in table.headers),
        **{name: str(value) for name, value in header.versions.items() if value},
        **{name: str(value) for name, value in header.machine.items() if value},
    }
    return tuple(facts.items())
