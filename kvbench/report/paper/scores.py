"""Scores of a run folder as numbers to lay beside a paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from kvbench.config.catalog import choices
from kvbench.plan.names import LM_EVAL, SAMPLE
from kvbench.records.header import RunHeader
from kvbench.report.paper.published import Figure
from kvbench.report.paper.table import Beside, Number, Shares, at_budget
from kvbench.report.sheets.card import protocol_card
from kvbench.report.table.columns import FULL_AVERAGE
from kvbench.report.table.needle import is_needle
from kvbench.report.table.table import Row, Table, TaskColumn, metric_name

PAPER = "paper"
"""The protocol profile of the papers' tables."""

_AS_PRINTED = 0.05
"""Points that papers round shares to."""

_CACHE = "cache_memory_MB"
"""The column of PyramidKV's memory table that is no score."""


@dataclass(frozen=True)
class ScoreNumbers:
    """Numbers of `kvbench run` and `kvbench lm-eval`."""

    tables: Sequence[Table]

    @property
    def card(self) -> tuple[str, ...]:
        """Protocol, data and versions of the newest table."""
        return tuple(protocol_card(self.tables[-1]))

    def ours(self, figure: Figure, beside: Beside, columns: set[str]) -> Number:
        """Our score; the mean of the printed tasks for AVG."""
        table = self._table_for(figure)
        rows = _rows_for(figure, table, beside)
        if figure.task == _CACHE:
            return _cache_size(rows)
        if figure.task != "AVG":
            task = _task_for(figure, table, beside)
            return Number(None) if task is None else _best(rows, task, table, figure.whole)
        printed = columns - {"AVG", _CACHE}
        tasks = [task for task in table.tasks if task.name in printed or not printed]
        # Where the average alone is printed, it is over all of LongBench.
        if len(tasks) < (len(printed) or FULL_AVERAGE):
            return Number(None)
        found = [_best(rows, task, table, figure.whole) for task in tasks]
        known = [ours.value for ours in found if ours.value is not None and not ours.partial]
        return Number(fmean(known) if len(known) == len(tasks) else None)

    def shares(self, figure: Figure, beside: Beside) -> Shares | None:
        """Means over samples, then tasks, then our rows."""
        rows = [r for r in _rows_for(figure, self._table_for(figure), beside) if not r.is_baseline]
        if not rows:
            return None
        printed = [row.ratio("ratio_formula15_printed") for row in rows]
        return Shares(_mean(printed), _mean([row.ratio("ratio_bytes") for row in rows]))

    def obstacles(self, figure: Figure, beside: Beside) -> list[str]:
        """Another model, other data, fewer samples, another protocol, another reading of memory."""
        table = self._table_for(figure)
        header = table.headers[-1]
        found = []
        if _model(table) != figure.model:
            found.append(f"other model (ours {_model(table)}, published {figure.model})")
        found += _other_data(table)
        limit = header.limit
        if limit is not None:
            found.append(f"fewer samples (the first {limit} of each task)")
        found += _other_protocol(header)
        if figure.task == _CACHE:
            found.append("other cache (ours in MiB, the mean over the prompts)")
        apart = max((self._apart.get(name, 0.0) for name in beside.names(figure)), default=0.0)
        if figure.reserve_ratio and apart >= _AS_PRINTED:
            found.append(
                f"two readings of memory ({figure.method}'s bytes are up to {apart:.1f} points off"
                " Formula 15 as printed)"
            )
        return found

    @cached_property
    def _apart(self) -> Mapping[str, float]:
        """Series -> how many points its bytes lie off Formula 15 as printed, at most."""
        found: dict[str, float] = {}
        for row in (row for table in self.tables for row in table.rows):
            printed, held = row.ratio("ratio_formula15_printed"), row.ratio("ratio_bytes")
            if printed is not None and held is not None and not row.is_baseline:
                found[row.series] = max(found.get(row.series, 0.0), 100 * abs(held - printed))
        return found

    def _table_for(self, figure: Figure) -> Table:
        """Our table of the same model; else the newest of any."""
        same = [table for table in self.tables if _model(table) == figure.model]
        return (same or list(self.tables))[-1]


def _other_data(table: Table) -> list[str]:
    header = table.headers[-1]
    if header.data.is_sample_suite:
        return ["other data (kvbench's own sample suite)"]
    if header.data.setting == f"{LM_EVAL} {SAMPLE}":
        return ["other data (kvbench's own samples)"]
    if is_needle(table) and header.task_settings.get("haystack") is None:
        return ["other data (kvbench's own haystack)"]
    return []


def _other_protocol(header: RunHeader) -> list[str]:
    """Another profile than the papers', or a field of theirs that the run changed."""
    name = header.protocol.name
    if name == LM_EVAL:
        return []
    if name != PAPER:
        return [f"other protocol (ours {name}, published {PAPER})"]
    published = next(c.config for c in choices("protocol") if c.name == PAPER)
    given = header.protocol_settings
    changed = [f"{k}={given[k]}" for k in published if given.get(k, published[k]) != published[k]]
    return [f"other protocol (ours {', '.join(changed)})"] if changed else []


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _task_for(figure: Figure, table: Table, beside: Beside) -> TaskColumn | None:
    """Our column of a printed one."""
    name, metric = beside.scores.get(figure.task, (figure.task, ""))
    if metric and table.metrics.get(name, ())[:1] != (metric,):
        name = metric_name(name, metric)
    return next((c for c in (*table.tasks, *table.other_metrics) if c.name == name), None)


def _best(rows: Sequence[Row], task: TaskColumn, table: Table, whole: float) -> Number:
    scores = [(table.task_score(row, task), table.missing(row, task) > 0) for row in rows]
    known = [(score * whole / 100, partial) for score, partial in scores if score is not None]
    return Number(*max(known)) if known else Number(None)


def _cache_size(rows: Sequence[Row]) -> Number:
    sizes = [r.cache_bytes for row in rows for r in row.records if r.cache_bytes is not None]
    return Number(fmean(sizes) / 2**20 if sizes else None)


def _rows_for(figure: Figure, table: Table, beside: Beside) -> list[Row]:
    """Our rows of the same method, setting and budget."""
    found = []
    for name in beside.names(figure):
        rows = [row for row in table.rows if row.series == name]
        place = at_budget(beside.at_our_budget(figure), rows)
        found += [] if place is None else [rows[place]]
    return found


def _model(table: Table) -> str:
    return table.headers[-1].model.name
