"""A run folder as an object: its records, its header, its tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.base.errors import UserError
from kvbench.records.header import RunHeader
from kvbench.records.reader import distinct, read_shards
from kvbench.records.record import Record
from kvbench.records.summary import Summary
from kvbench.report.look import Look
from kvbench.report.table.table import Table, tables_of

if TYPE_CHECKING:
    import pandas

RUNS = Path("results", "runs")
"""Where runs go that are given no folder."""


@dataclass(frozen=True)
class Run:
    """What a run folder holds, read afresh at each call."""

    folder: Path
    summary: Summary | None = None
    """What the call that returned this computed; None where it only read."""

    @property
    def headers(self) -> tuple[RunHeader, ...]:
        """What each shard says of the run that wrote it, oldest first."""
        return tuple(shard.header for shard in read_shards(self.folder))

    @property
    def header(self) -> RunHeader:
        """The newest of `headers`.

        Raises:
            UserError: the folder holds none.
        """
        headers = self.headers
        if not headers:
            raise UserError(f"{self.folder} holds no run: give a run folder of kvbench's")
        return headers[-1]

    def records(self) -> list[Record]:
        """Return the results, failures included, each key once."""
        return [record for _, record in distinct(read_shards(self.folder))]

    def to_pandas(self) -> pandas.DataFrame:
        """Return the results as a DataFrame: a row for each record, a column for each field."""
        import pandas

        names = list(Record.__dataclass_fields__)
        rows = [[getattr(record, name) for name in names] for record in self.records()]
        return pandas.DataFrame(rows, columns=names)

    def tables(self) -> list[Table]:
        """Return the results as tables of rows that may be compared.

        Raises:
            UserError: the folder does not exist or holds no records.
        """
        return tables_of(self.folder)

    def table(self, form: str = "terminal", **parts: Any) -> str:
        """Return the report of the run as text.

        Args:
            form: `terminal`, `markdown`, `csv`, `latex` or `html`.
            parts: fields of `kvbench.report.look.Look`, such as `per_task=True`.

        Raises:
            UserError: the folder holds no records, or a part is unknown.
        """
        try:
            look = Look(form=form, **parts)
        except TypeError as error:
            known = ", ".join(Look.__dataclass_fields__)
            raise UserError(f"{', '.join(parts)}: a report's parts are {known}") from error
        return self.report(look)

    def report(self, look: Look) -> str:
        """Return the report of the run as text, as `look` says.

        Raises:
            UserError: the folder holds no records, or no row is the reference.
        """
        from kvbench.report.render import report

        return report(self.folder, look)

    def status(self) -> str:
        """Return what is done, missing and failed, as text.

        Raises:
            UserError: the folder holds no records.
        """
        from kvbench.report.sheets.status import status_text

        return status_text(self.folder)


def load_run(folder: str | Path) -> Run:
    """Return what a run folder holds.

    Raises:
        UserError: there is no such folder.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise UserError(f"{folder} is not a folder: give a run folder such as results/runs/NAME")
    return Run(path)


def newest_run(runs: Path = RUNS) -> Run:
    """Return the run folder written to last.

    Raises:
        UserError: there is no run.
    """
    shards = sorted(runs.glob("*/*.jsonl"), key=lambda path: path.stat().st_mtime)
    if not shards:
        raise UserError(f"no run in {runs}: make one with `kvbench run`, or give its folder")
    return Run(shards[-1].parent)
