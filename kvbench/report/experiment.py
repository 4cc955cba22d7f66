"""The report of an experiment, by name: its paper's table beside what its run folder holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kvbench.catalog import check_choice, choices
from kvbench.errors import UserError
from kvbench.report.look import Look
from kvbench.report.paper import Beside, paper_csv, paper_sheets
from kvbench.report.published import published_table
from kvbench.report.render import drawn, report
from kvbench.report.tables import tables_of


def experiment_report(words: Sequence[str], look: Look) -> str:
    """Return an experiment's numbers in its paper's shape.

    Args:
        words: `experiment=spindlekv/table10`, and `out=FOLDER` where the run was given one.
        look: the form. HTML shows the run folder, as does an experiment without printed numbers.

    Raises:
        UserError: there is no such experiment, it was not run, or a word is neither of these.
    """
    name, out = _named(words)
    config = next(c.config for c in choices("experiment") if c.name == name)
    folder = out or config.get("out")
    if folder is None:
        raise UserError(f"experiment={name} names no run folder: give out=FOLDER as well")
    if not Path(folder).is_dir():
        raise UserError(f"{folder} is no folder: make it with `kvbench run experiment={name}`")
    beside = _beside(config.get("experiment"))
    if beside is None or look.form == "html":
        return report(Path(folder), look)
    tables = tables_of(Path(folder))
    if look.form == "csv":
        return paper_csv(tables, beside)
    return drawn(paper_sheets(tables, beside), look)


def _named(words: Sequence[str]) -> tuple[str, str | None]:
    found = {"out": ""}
    for word in words:
        key, equals, value = word.partition("=")
        if key not in ("experiment", "out") or not equals:
            raise UserError(f"{word!r} is no word of a report: give experiment=NAME and out=FOLDER")
        found[key] = value
    check_choice("experiment", found["experiment"])
    return found["experiment"], found["out"] or None


def _beside(node: dict[str, object] | None) -> Beside | None:
    if node is None:
        return None
    rows = node["rows"]
    assert isinstance(rows, dict)
    return Beside(published_table(str(node["published"])), rows)
