"""Agency reports with a summary: gov_report in form.

A report opens with what was found; background, method and comments come from a common stock.
The summary reuses the wording of the findings.
"""

from __future__ import annotations

from dataclasses import dataclass

from scripts.sample_material.pick import Picker


@dataclass(frozen=True)
class Report:
    """One report; `agency` and `programme` fill the stock paragraphs."""

    agency: str
    programme: str
    findings: tuple[str, ...]
    summary: str


REPORTS = (
    Report(
        "the Harbour Authority",
        "the dredging programme",
        (
            "The Harbour Authority is responsible for keeping the four northern harbours open to "
            "ships. Under the dredging programme, which began eight years ago, sand and mud are "
            "removed from the harbour entrances every spring. The programme costs about 14 million "
            "crowns a year and employs 210 people.",
            "We found that the dredging programme has kept three of the four harbours open, but "
            "that the harbour of Ivelmouth was closed for 61 days last year. The main reason was "
            "that the only large dredger was in repair. The Harbour Authority has no plan for the "
            "replacement of the dredger, although it is 38 years old.",
            "We also found that the mud from the harbours is dumped too close to the coast. Storms "
            "carry about a third of it back into the entrances, so that the same mud is paid for "
            "twice. Fishermen reported that nets were damaged by stones from the dumping ground.",
            "We recommend that the Harbour Authority buy or rent a second dredger, that it move the "
            "dumping ground to deeper water, and that it publish the depth of each entrance every "
            "month.",
        ),
        "The Harbour Authority is responsible for keeping the four northern harbours open to ships. "
        "Under the dredging programme, sand and mud are removed from the harbour entrances every "
        "spring, at a cost of about 14 million crowns a year. The report found that the programme "
        "has kept three of the four harbours open, but that the harbour of Ivelmouth was closed for "
        "61 days last year because the only large dredger was in repair. It also found that the mud "
        "is dumped too close to the coast and that storms carry about a third of it back into the "
        "entrances. The report recommends that the Harbour Authority buy or rent a second dredger, "
        "move the dumping ground to deeper water, and publish the depth of each entrance every "
        "month.",
    ),
    Report(
        "the Office of Rural Roads",
        "the winter service",
        (
            "The Office of Rural Roads clears snow from 2,300 miles of road in the uplands. The "
            "winter service is carried out by farmers, who are paid by the hour and use their own "
            "tractors. Last winter 640 farmers took part, and the service cost 9 million crowns.",
            "We found that the winter service works well on main roads and badly on side roads. On "
            "side roads snow was cleared after eleven hours on average, while the rules allow six. "
            "Two villages could not be reached for five days, and the milk of 90 farms had to be "
            "thrown away.",
            "We also found that salt is used without need. The office orders the same amount of "
            "salt every year, whatever the weather, and a fifth of it was spread on roads that were "
            "dry. Trees along these roads are dying, and wells near Cray Head can no longer be "
            "used.",
            "We recommend that the Office of Rural Roads pay farmers a bonus for side roads, that "
            "it order salt by the weather forecast, and that it test the wells along salted roads "
            "every year.",
        ),
        "The Office of Rural Roads clears snow from 2,300 miles of road in the uplands. The winter "
        "service is carried out by farmers, who are paid by the hour and use their own tractors. "
        "The report found that the winter service works well on main roads and badly on side roads, "
        "where snow was cleared after eleven hours on average, while the rules allow six. It also "
        "found that salt is used without need and that a fifth of it was spread on roads that were "
        "dry. The report recommends that the Office of Rural Roads pay farmers a bonus for side "
        "roads, order salt by the weather forecast, and test the wells along salted roads every "
        "year.",
    ),
    Report(
        "the Department of Public Libraries",
        "the book boat service",
        (
            "The Department of Public Libraries runs the book boat service for the outer islands. "
            "Two boats with 6,000 books each visit 31 islands every three weeks. The service was "
            "started as a trial twelve years ago and has never been reviewed before.",
            "We found that the book boat service is used by more than half of the islanders, which "
            "is twice the share on the mainland. Each loan costs the department 7 crowns, however, "
            "and the cost has doubled since the price of fuel went up. One of the two boats leaks, "
            "and about 400 books were lost to water last year.",
            "We also found that the timetable does not suit schools. On 14 islands the boat arrives "
            "in the school holidays or late at night. Teachers told us that pupils row out to the "
            "boat in the dark, which is not safe.",
            "We recommend that the Department of Public Libraries replace the leaking boat, that it "
            "write a new timetable together with the schools, and that it keep boxes of books on "
            "the largest islands.",
        ),
        "The Department of Public Libraries runs the book boat service for the outer islands, where "
        "two boats with 6,000 books each visit 31 islands every three weeks. The report found that "
        "the book boat service is used by more than half of the islanders, but that each loan costs "
        "the department 7 crowns and that one of the two boats leaks. It also found that the "
        "timetable does not suit schools, since on 14 islands the boat arrives in the school "
        "holidays or late at night. The report recommends that the Department of Public Libraries "
        "replace the leaking boat, write a new timetable together with the schools, and keep boxes "
        "of books on the largest islands.",
    ),
    Report(
        "the Forest Agency",
        "the fire watch",
        (
            "The Forest Agency protects 900,000 acres of forest from fire. The fire watch consists "
            "of 55 towers, which are manned from April to October, and of two small aircraft. It "
            "reports every column of smoke to the nearest fire brigade by radio.",
            "We found that the fire watch discovers nine fires in ten within half an hour. In the "
            "western district, however, it takes more than two hours, because eleven of the towers "
            "there are closed. The towers were closed when the trees around them grew higher than "
            "the platforms.",
            "We also found that the radios of the Forest Agency and those of the fire brigades do "
            "not work together. Messages are passed on by telephone through an office in the "
            "capital. In the fire of Larkham Ridge this took 47 minutes, and 3,000 acres were "
            "burned.",
            "We recommend that the Forest Agency raise or move the closed towers, that it buy radios "
            "of the same type as the fire brigades, and that it practise with them before each "
            "season.",
        ),
        "The Forest Agency protects 900,000 acres of forest from fire with a fire watch of 55 towers "
        "and two small aircraft. The report found that the fire watch discovers nine fires in ten "
        "within half an hour, but that it takes more than two hours in the western district, "
        "because eleven of the towers there are closed. It also found that the radios of the Forest "
        "Agency and those of the fire brigades do not work together, so that messages are passed on "
        "by telephone through an office in the capital. The report recommends that the Forest Agency "
        "raise or move the closed towers, buy radios of the same type as the fire brigades, and "
        "practise with them before each season.",
    ),
)

STOCK = (
    "Scope and method. This review covers the last three budget years. We read the files of "
    "{agency}, visited nine sites without notice and interviewed 74 employees. Figures were "
    "checked against the accounts, and where they differed we used the lower ones. All sums are "
    "given in prices of the current year.",
    "Legal background. The duties of {agency} are laid down in a law that is older than most of "
    "the equipment in use. The law was last amended to allow payments by the month instead of by "
    "the quarter. It does not say by what standard {programme} should be judged, and parliament "
    "has not asked for one.",
    "Staff. Every tenth post at {agency} is vacant, and in two offices every fourth. Managers told "
    "us that advertisements bring few replies, because wages are fixed by a table that makes no "
    "difference between town and country. Those who stay tend to stay long. The average employee "
    "has been in service for nineteen years.",
    "Records. Much of the information about {programme} is kept on paper. Forms are filled in by "
    "hand, collected in boxes and sent to a central office, where they are typed. We compared 200 "
    "forms with the typed records and found 23 errors, most of them harmless.",
    "Earlier reviews. A review by the former court of accounts came to similar conclusions about "
    "the records and the vacant posts. Of its eight recommendations five were carried out, one was "
    "overtaken by events, and two were filed without an answer.",
    "Public opinion. We asked a sample of 1,150 residents about {programme}. Most of them had heard "
    "of it, and about two thirds were satisfied. The most frequent wish was for a telephone number "
    "that somebody answers.",
    "Comments. We sent a draft of this review to {agency} and received a letter of four pages in "
    "reply. It agreed with our description of {programme}, thanked us for the visits, and asked "
    "for more time. Technical corrections have been made where they were justified.",
    "Other countries. We looked at similar services in three neighbouring countries. None of them "
    "is organised in the same way, and none publishes figures that would allow an exact "
    "comparison. All three spend rather more per head, and all three complain about the weather.",
    "Limits. Some questions could not be answered. Accounts for the oldest year had been damaged by "
    "water, and two former directors did not wish to be interviewed. We do not think that this "
    "changes the picture.",
)


def context(picker: Picker, report: Report, stock: int) -> str:
    """Return the report: findings first, then `stock` further paragraphs."""
    name = report.agency
    more = [
        text.format(agency=name, programme=report.programme) for text in picker.some(STOCK, stock)
    ]
    return "\n\n".join([*report.findings, *more])
