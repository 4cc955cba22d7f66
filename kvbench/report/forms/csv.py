"""Tables as CSV, one line a row, with every ratio, interval and difference."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from kvbench.report.look import COMPRESSING, RATIOS, Look
from kvbench.report.sheet import Sheet
from kvbench.report.sheets.card import summary_of_missing
from kvbench.report.table.columns import columns_of
from kvbench.report.table.comparison import comparison, score_interval
from kvbench.report.table.stats import Interval
from kvbench.report.table.table import Table


def table_csv(tables: Sequence[Table], look: Look) -> str:
    """Write the rows of all tables; the same columns for all, in the order they first appear."""
    lines = [line for table in tables for line in _lines(table, look)]
    out = io.StringIO()
    names = list(dict.fromkeys(name for line in lines for name in line))
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def sheet_csv(sheets: Sequence[Sheet]) -> str:
    """Write the rows of sheets as they are printed, each sheet's title in the first column."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    headings = None
    for sheet in sheets:
        if sheet.headings != headings:
            headings = sheet.headings
            writer.writerow(["table", *(heading.name for heading in headings)])
        writer.writerows([sheet.title, *(cell.text for cell in row.cells)] for row in sheet.rows)
    return out.getvalue()


def _lines(table: Table, look: Look) -> list[dict[str, str]]:
    columns = columns_of(table, look.per_task)
    header = table.headers[-1]
    differences = _differences(table, look) if look.differences else {}
    lines = []
    for i, row in enumerate(table.rows):
        line = {
            "model": header.model.name,
            "data": header.data.description,
            "protocol": header.protocol.name,
            "variant": row.label,
            "method": row.method,
            "budget": str(row.budget),
        }
        for name in (*RATIOS, COMPRESSING):
            ratio = row.ratio(name)
            line[name] = "" if ratio is None else f"{ratio:.4f}"
        for column in columns:
            value = column.values[i]
            line[column.name] = _number(value)
            interval = None if value is None else score_interval(row, column.tasks)
            line |= _ends(column.name, interval)
        line |= differences.get(row.label, {})
        line["samples"] = str(sum(len(row.scores.get(t.name, ())) for t in table.tasks))
        line["missing"] = summary_of_missing(table, row)
        lines.append(line)
    return lines


def _differences(table: Table, look: Look) -> dict[str, dict[str, str]]:
    """Label -> the fields that say how a row differs from the reference."""
    compared = comparison(table, columns_of(table, look.per_task), look.reference)
    found: dict[str, dict[str, str]] = {}
    for row, cells in zip(compared.rows, compared.cells, strict=True):
        line = found.setdefault(row.label, {"reference": compared.reference.label})
        for column, cell in zip(compared.columns, cells, strict=True):
            paired = None if cell is None else cell.difference
            name = f"{column.name} difference"
            line[name] = _number(None if paired is None else paired.mean)
            line |= _ends(name, None if paired is None else paired.interval)
            line[f"{column.name} p"] = "" if paired is None else f"{paired.p:.4f}"
            line[f"{column.name} p holm"] = "" if cell is None else f"{cell.corrected_p:.4f}"
    return found


def _ends(name: str, interval: Interval | None) -> dict[str, str]:
    return {
        f"{name} low": _number(None if interval is None else interval.low),
        f"{name} high": _number(None if interval is None else interval.high),
    }


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
