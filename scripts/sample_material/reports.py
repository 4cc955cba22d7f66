"""Agency reports with a summary: gov_report in form.

A report states in one paragraph what was found; an appendix of figures by district fills the
rest, so that the findings lie outside the last part. The summary reuses the findings' wording.
"""

from __future__ import annotations

from dataclasses import dataclass

from scripts.sample_material.encyclopedia import TOWNS
from scripts.sample_material.pick import Picker


@dataclass(frozen=True)
class Report:
    """One report: the findings, the columns of its appendix, and the reference summary."""

    findings: str
    columns: tuple[str, str, str]
    summary: str


REPORTS = (
    Report(
        "The Harbour Authority is responsible for keeping the four northern harbours open to "
        "ships. Under the dredging programme, sand and mud are removed from the harbour entrances "
        "every spring, at a cost of about 14 million crowns a year. The report found that the "
        "programme has kept three of the four harbours open, but that the harbour of Ivelmouth was "
        "closed for 61 days last year because the only large dredger was in repair. It also found "
        "that the mud is dumped too close to the coast and that storms carry about a third of it "
        "back into the entrances. The report recommends that the Harbour Authority buy or rent a "
        "second dredger, move the dumping ground to deeper water, and publish the depth of each "
        "entrance every month.",
        ("Staff", "Vacant", "Cost"),
        "The Harbour Authority keeps the four northern harbours open to ships and spends about 14 "
        "million crowns a year on the dredging programme. The report found that the programme has "
        "kept three of the four harbours open, but that the harbour of Ivelmouth was closed for 61 "
        "days last year because the only large dredger was in repair. The report recommends that "
        "the Harbour Authority buy or rent a second dredger, move the dumping ground to deeper "
        "water, and publish the depth of each entrance every month.",
    ),
    Report(
        "The Department of Public Libraries runs the book boat service for the outer islands, "
        "where two boats with 6,000 books each visit 31 islands every three weeks. The report "
        "found that the book boat service is used by more than half of the islanders, but that "
        "each loan costs the department 7 crowns and that one of the two boats leaks. It also "
        "found that the timetable does not suit schools, since on 14 islands the boat arrives in "
        "the school holidays or late at night. The report recommends that the Department of Public "
        "Libraries replace the leaking boat, write a new timetable together with the schools, and "
        "keep boxes of books on the largest islands.",
        ("Loans", "Visits", "Readers"),
        "The Department of Public Libraries runs the book boat service for the outer islands. The "
        "report found that the book boat service is used by more than half of the islanders, but "
        "that each loan costs the department 7 crowns, that one of the two boats leaks, and that "
        "the timetable does not suit schools. The report recommends that the department replace "
        "the leaking boat, write a new timetable together with the schools, and keep boxes of "
        "books on the largest islands.",
    ),
    Report(
        "The Forest Agency protects 900,000 acres of forest from fire with a fire watch of 55 "
        "towers and two small aircraft. The report found that the fire watch discovers nine fires "
        "in ten within half an hour, but that it takes more than two hours in the western "
        "district, because eleven of the towers there are closed. It also found that the radios of "
        "the Forest Agency and those of the fire brigades do not work together, so that messages "
        "are passed on by telephone through an office in the capital. The report recommends that "
        "the Forest Agency raise or move the closed towers, buy radios of the same type as the "
        "fire brigades, and practise with them before each season.",
        ("Towers", "Fires", "Acres"),
        "The Forest Agency protects 900,000 acres of forest from fire with a fire watch of 55 "
        "towers and two small aircraft. The report found that the fire watch discovers nine fires "
        "in ten within half an hour, but that eleven of the towers in the western district are "
        "closed and that the radios of the Forest Agency and the fire brigades do not work "
        "together. The report recommends that the Forest Agency raise or move the closed towers "
        "and buy radios of the same type as the fire brigades.",
    ),
)


def context(picker: Picker, report: Report, rows: int) -> str:
    """Return the findings and an appendix with `rows` districts."""
    table = [" | ".join(("District", *report.columns))]
    for town in picker.some(TOWNS, rows):
        figures = picker.between(10, 90), picker.between(1, 9), picker.between(100, 900)
        table.append(" | ".join((town, *map(str, figures))))
    return f"{report.findings}\n\nAppendix: figures by district\n\n" + "\n".join(table)
