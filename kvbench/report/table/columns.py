"""The columns of scores of a table, and who is best in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvbench.compress.budget import Budget
from kvbench.report.table.comparison import difference
from kvbench.report.table.needle import is_needle, needle_columns
from kvbench.report.table.table import Column, Row, Table, TaskColumn, metric_name

FULL_AVERAGE = 16
"""Tasks of the papers' AVG; over another number the column says over how many."""

_SHORT = {
    "Single-Document QA": "Single-\nDoc QA",
    "Multi-Document QA": "Multi-\nDoc QA",
    "Summarization": "Summ.",
    "Few-shot Learning": "Few-\nshot",
    "Synthetic": "Synth.",
    # As SpindleKV's tables abbreviate them.
    "narrativeqa": "Na.QA",
    "qasper": "Qasp",
    "multifieldqa_en": "Mu.QA",
    "hotpotqa": "Ho.QA",
    "2wikimqa": "Wi.QA",
    "musique": "Musq",
    "gov_report": "Gv.Rp",
    "qmsum": "QMSm",
    "multi_news": "M.New",
    "trec": "TREC",
    "triviaqa": "Tr.QA",
    "samsum": "SASm",
    "passage_count": "PCnt",
    "passage_retrieval_en": "Pa.Rt",
    "lcc": "Lcc",
    "repobench-p": "RB.P",
}


def short_name(name: str) -> str:
    """A heading of at most two narrow lines, for a task, a group or anything else."""
    return _SHORT.get(name, name)


def columns_of(table: Table, per_task: bool) -> list[Column]:
    """Return the score columns: tasks or groups, then AVG; accuracies of a needle run."""
    if is_needle(table):
        return [_accuracy_column(table, *column) for column in needle_columns(table)]
    columns: list[Column] = []
    for name in [task.name for task in table.tasks] if per_task else table.groups:
        tasks = [task for task in table.tasks if name in (task.name if per_task else task.group,)]
        if per_task:
            columns.append(_task_column(table, tasks[0]))
        else:
            columns.append(_mean_column(table, name, short_name(name), tasks))
        columns += _other_metrics(table, name, tasks)
    count = len(table.tasks)
    names = ("AVG", "AVG")
    if count != FULL_AVERAGE:
        counted = f"{count} task" + "s" * (count != 1)
        names = (f"AVG of {counted}", f"AVG of\n{counted}")
    return [*columns, _mean_column(table, *names, table.tasks)]


def best_rows(table: Table, column: Column) -> dict[int, bool]:
    """Return the rows that are best in a column among the methods at their budget.

    The baseline does not compete, nor does a value from which samples are missing. Where all
    rivals are equal, or there is one, none is best.

    Returns:
        Row number -> whether the lead is clear: the paired 95% interval of the difference to the
        next of its rivals lies above zero. Never clear where two share the lead.
    """
    best: dict[int, bool] = {}
    for budget in dict.fromkeys(row.budget for row in table.rows if not row.is_baseline):
        ranked = sorted(_rivals(table, column, budget).items(), key=lambda item: -item[1])
        leaders = [i for i, value in ranked if value == ranked[0][1]]
        if len(leaders) < len(ranked):
            following = ranked[len(leaders)][0]
            clear = len(leaders) == 1 and _clearly_above(table, column, leaders[0], following)
            best |= dict.fromkeys(leaders, clear)
    return best


def _accuracy_column(
    table: Table,
    name: str,
    short: str,
    values: tuple[float | None, ...],
    partial: tuple[bool, ...],
) -> Column:
    """Only the accuracy over all cells is the mean of a task's scores."""
    tasks = tuple(task for task in table.tasks if name in ("accuracy", f"{task.name} accuracy"))
    return Column(name, short, tasks, values, partial)


def _task_column(table: Table, task: TaskColumn) -> Column:
    values = tuple(table.task_score(row, task) for row in table.rows)
    lacking = tuple(
        table.missing(row, task) > 0 and value is not None
        for row, value in zip(table.rows, values, strict=True)
    )
    return Column(task.name, short_name(task.name), (task,), values, lacking)


def _mean_column(table: Table, name: str, short: str, tasks: Sequence[TaskColumn]) -> Column:
    values = tuple(table.mean_of(row, tasks) for row in table.rows)
    return Column(name, short, tuple(tasks), values, (False,) * len(table.rows))


def _other_metrics(table: Table, name: str, tasks: Sequence[TaskColumn]) -> Iterator[Column]:
    """A column for each metric, beside the main one, that all these tasks have."""
    shared = [table.metrics.get(task.name, ())[1:] for task in tasks]
    for metric in shared[0]:
        if all(metric in metrics for metrics in shared):
            wanted = {metric_name(task.name, metric) for task in tasks}
            columns = [column for column in table.other_metrics if column.name in wanted]
            # Of `exact_match,flexible-extract` the filter tells it from the main metric.
            short = f"{short_name(name)}\n{metric.rpartition(',')[2]}".replace("-", "-\n")
            yield _mean_column(table, metric_name(name, metric), short, columns)


def _rivals(table: Table, column: Column, budget: Budget) -> dict[int, float]:
    """Row number -> value as printed, of the methods that compete at a budget."""
    cells: Sequence[tuple[Row, float | None, bool]]
    cells = list(zip(table.rows, column.values, column.partial, strict=True))
    return {
        i: round(value, 2)
        for i, (row, value, partial) in enumerate(cells)
        if row.budget == budget and not row.is_baseline and value is not None and not partial
    }


def _clearly_above(table: Table, column: Column, leader: int, following: int) -> bool:
    found = difference(table.rows[leader], table.rows[following], column.tasks)
    return found is not None and found.interval is not None and found.interval.low > 0
