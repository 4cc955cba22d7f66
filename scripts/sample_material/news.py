"""News passages on one event with a summary: multi_news in form.

Two short passages tell the event; a table of the weather fills the rest, so that the news lies
outside the last part. The summary reuses the passages' wording.
"""

from __future__ import annotations

from dataclasses import dataclass

from scripts.sample_material.encyclopedia import TOWNS
from scripts.sample_material.pick import Picker


@dataclass(frozen=True)
class Event:
    """One event as told by two papers, and the reference summary."""

    first: str
    second: str
    summary: str


EVENTS = (
    Event(
        "The city of Graum has opened the first night school for bakers in the country. The school "
        "was founded by the retired baker Otto Lindgren and has 45 pupils, most of whom work "
        "during the day.",
        "Lessons at the night school for bakers begin at ten in the evening and end at four in the "
        "morning. The city pays for the flour, and the bread is given to three hospitals. A second "
        "school is planned in Varne next year.",
        "The city of Graum has opened the first night school for bakers. The school was founded by "
        "the retired baker Otto Lindgren and has 45 pupils, most of whom work during the day. The "
        "city pays for the flour, and the bread is given to three hospitals. A second school is "
        "planned in Varne next year.",
    ),
    Event(
        "A team of students from Quarrendon has built a bicycle that can be ridden under water. "
        "The bicycle has tanks of compressed air and wheels of concrete, and it was tested in Lake "
        "Verrall in June.",
        "The student Mira Falk rode 800 metres along the bottom of Lake Verrall on a bicycle. The "
        "team now hopes to cross the harbour of Ivelmouth. A diving company has offered to pay for "
        "the project.",
        "A team of students from Quarrendon has built a bicycle that can be ridden under water. "
        "It has tanks of compressed air and wheels of concrete, and the student Mira Falk rode 800 "
        "metres along the bottom of Lake Verrall. The team hopes to cross the harbour of Ivelmouth, "
        "and a diving company has offered to pay for the project.",
    ),
    Event(
        "The national museum has returned a stone lion to the village of Tarn Abbey after 120 "
        "years. The lion was taken by a collector and had stood in the museum's staircase since "
        "then.",
        "About 900 people welcomed a stone lion in Tarn Abbey with a brass band, and it was placed "
        "in front of the school. The villagers had asked for it in 37 letters. The museum will "
        "receive a copy made of plaster.",
        "The national museum has returned a stone lion to the village of Tarn Abbey after 120 "
        "years. The lion was taken by a collector, and the villagers had asked for it in 37 "
        "letters. About 900 people welcomed it with a brass band, and it was placed in front of "
        "the school. The museum will receive a copy made of plaster.",
    ),
)


def context(picker: Picker, event: Event, rows: int) -> str:
    """Return two numbered passages, the second with the weather of `rows` towns."""
    table = ["Town | High | Low | Rain"]
    for town in picker.some(TOWNS, rows):
        figures = picker.between(15, 29), picker.between(1, 14), picker.between(10, 90)
        table.append(" | ".join((town, *map(str, figures))))
    weather = "Appendix: yesterday's weather\n\n" + "\n".join(table)
    return f"Passage 1:\n{event.first}\n\nPassage 2:\n{event.second}\n\n{weather}"
