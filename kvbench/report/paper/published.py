"""Numbers that papers printed, as they printed them, with what is odd about them.

`published.csv` holds one number a line, copied from the papers and never corrected. The footnotes
here say where a number cannot be taken at its word.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib import resources

from kvbench.base.errors import UserError
from kvbench.base.suggest import did_you_mean


@dataclass(frozen=True)
class Figure:
    """One printed number; every field is text as printed, empty where it does not apply."""

    paper: str
    table: str
    model: str
    method: str
    setting: str
    """What else sets the row apart, such as an ablation."""
    reserve_ratio: str
    """What is kept, as the paper counts it, such as `39.1%`."""
    budget_tokens: str
    """What is kept: tokens per head and layer."""
    task: str
    """Task, `AVG`, or another quantity such as `decode_tokens_per_s`."""
    score: str

    @property
    def whole(self) -> float:
        """What a perfect score would be printed as."""
        shares = self.task == "needle" or (self.paper, self.model) == ("KVCrush", "llama2-7b-chat")
        return 1.0 if shares else 100.0


@dataclass(frozen=True)
class Footnote:
    """What is odd about some numbers of a table."""

    table: str
    """Such as `spindlekv/table1`."""
    text: str
    where: Mapping[str, str]
    """Field -> value of the numbers meant; empty: the table as a whole."""

    def means(self, figure: Figure) -> bool:
        """Whether the footnote is about this number."""
        return bool(self.where) and all(
            getattr(figure, name) == value for name, value in self.where.items()
        )


@dataclass(frozen=True)
class PublishedTable:
    """All numbers of one printed table, in reading order."""

    name: str
    title: str
    figures: tuple[Figure, ...]
    footnotes: tuple[Footnote, ...]

    @property
    def models(self) -> tuple[str, ...]:
        """Models, as printed first."""
        return tuple(dict.fromkeys(figure.model for figure in self.figures))

    @property
    def about(self) -> str:
        """One line about it."""
        return f"{self.title}: {', '.join(self.models)}; {len(self.figures)} numbers"


FOOTNOTES = (
    Footnote(
        "spindlekv/table1",
        "This FullKV row looks like a LLaMA-3 row (TREC 73.00, TriviaQA 90.56, passage retrieval"
        " 69.25); KVCrush prints 86.98 for passage retrieval on the same model. A row that beats"
        " it does not beat FullKV.",
        {"method": "FullKV"},
    ),
    Footnote(
        "spindlekv/table1",
        "Printed 32.00; the row's own scores average 31.96.",
        {"method": "PyramidInfer", "reserve_ratio": "25.1%", "task": "AVG"},
    ),
    Footnote(
        "spindlekv/table10",
        "An outlier, 5 to 6 points above the same row at every other ratio; it is in the AVG.",
        {"method": "SpindleKV", "reserve_ratio": "29.3%", "task": "repobench-p"},
    ),
    Footnote(
        "spindlekv/table11",
        "An outlier, more than 3 points above FullKV and every other row; it is in the AVG.",
        {"method": "SpindleKV", "reserve_ratio": "16.7%", "task": "triviaqa"},
    ),
    Footnote(
        "spindlekv/table8",
        "SpindleKV's scores are Table 10's rows at 21.2% and 39.1%.",
        {"method": "SpindleKV"},
    ),
    Footnote(
        "spindlekv/table9",
        "17% and 18% slower than FullKV; the paper calls it no significant overhead.",
        {"method": "SpindleKV"},
    ),
    Footnote(
        "kvcrush/table3",
        "The best of three bases, chosen per task by its score here.",
        {"method": "KVCrush*"},
    ),
    Footnote("kvcrush/table3", "15 tasks, without lcc; the text says 16.", {}),
    Footnote(
        "kvcrush/table2",
        "Printed as a fraction, unlike the other models' per cents.",
        {"model": "llama2-7b-chat"},
    ),
    Footnote(
        "windowkv/table1",
        "The cell for narrativeqa is blank; the printed AVG implies 24.24.",
        {"model": "llama3-8b-instruct", "method": "PyramidKV", "budget_tokens": "512"},
    ),
    Footnote(
        "pyramidkv/memory",
        "0.84 MiB a token: neither LLaMA-3-8B's native cache (0.125) nor one that repeats K and V"
        " per query head (0.5) in 16 bits.",
        {"task": "cache_memory_MB"},
    ),
)

_NUMERALS = {"I": "1", "II": "2", "III": "3"}


def published_tables() -> Mapping[str, PublishedTable]:
    """Return every table by name, such as `windowkv/table1`, in the order of the papers."""
    found: dict[str, list[Figure]] = {}
    for figure in _figures():
        found.setdefault(_name(figure), []).append(figure)
    return {
        name: PublishedTable(
            name,
            f"{figures[0].paper}, {figures[0].table}",
            tuple(figures),
            tuple(note for note in FOOTNOTES if note.table == name),
        )
        for name, figures in found.items()
    }


def published_table(name: str) -> PublishedTable:
    """Return a table by name.

    Raises:
        UserError: there is none of that name.
    """
    tables = published_tables()
    if name not in tables:
        raise UserError(f"no published table {name}: {did_you_mean(name, tables)}")
    return tables[name]


def published_csv(table: PublishedTable) -> str:
    """A table's numbers, one a line, with what is odd about each."""
    out = io.StringIO()
    names = [field.name for field in fields(Figure)]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*names, "footnote"])
    for figure in table.figures:
        notes = " ".join(note.text for note in table.footnotes if note.means(figure))
        writer.writerow([*(getattr(figure, name) for name in names), notes])
    return out.getvalue()


@lru_cache
def _figures() -> tuple[Figure, ...]:
    file = resources.files("kvbench.report.paper").joinpath("published.csv")
    names = [field.name for field in fields(Figure)]
    lines = csv.DictReader(file.read_text(encoding="utf-8").splitlines())
    return tuple(Figure(*(line[name] for name in names)) for line in lines)


def _name(figure: Figure) -> str:
    """`Table III` becomes `table3`, `needle 8k` becomes `needle`, `main table` becomes `main`."""
    first, _, rest = figure.table.partition(" ")
    number = _NUMERALS.get(rest, rest)
    table = f"table{number}" if first == "Table" else first
    return f"{figure.paper}/{table}".lower()
