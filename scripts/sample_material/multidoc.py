"""Questions over several passages: hotpotqa, 2wikimqa and musique in form.

Each question has two or three hand-written gold passages; the rest are encyclopedia articles.
The sentence that answers the question shares its distinctive words with it and stands in the
first two thirds of the context.
"""

from __future__ import annotations

from dataclasses import dataclass

from scripts.sample_material import encyclopedia
from scripts.sample_material.pick import Picker


@dataclass(frozen=True)
class Question:
    """One question with its references and gold passages."""

    text: str
    answers: tuple[str, ...]
    gold: tuple[tuple[str, str], ...]
    """(title, text) of the passages that hold the chain, in reading order."""


HOTPOTQA = (
    Question(
        "Where did the sculptor of the Swan Fountain, Bruno Halloran, grow up?",
        ("in a lighthouse keeper's cottage near Cape Sorrow",),
        (
            (
                "Swan Fountain",
                "The Swan Fountain is a fountain of white marble in a public garden. Its sculptor "
                "was Bruno Halloran, who also carved the lions of the town hall.",
            ),
            (
                "Bruno Halloran",
                "Bruno Halloran was a sculptor. Bruno Halloran, the sculptor of the Swan "
                "Fountain, grew up in a lighthouse keeper's cottage near Cape Sorrow. He worked "
                "only at night, by the light of two oil lamps.",
            ),
        ),
    ),
    Question(
        "What award did the author of The Glass Ferry receive for the novel?",
        ("the Silver Quill of the Northern Libraries",),
        (
            (
                "The Glass Ferry",
                "The Glass Ferry is a novel by Maud Tarrington about a drowned village and the "
                "people who go on living above it.",
            ),
            (
                "Maud Tarrington",
                "Maud Tarrington was a novelist. For the novel The Glass Ferry, Maud Tarrington "
                "received the award called the Silver Quill of the Northern Libraries. She gave "
                "the money to a nurse.",
            ),
        ),
    ),
    Question(
        "The river boat Blue Heron, owned by Mirela Stanek, was turned into what?",
        ("a floating school for deaf children",),
        (
            (
                "Mirela Stanek",
                "Mirela Stanek was a teacher and a rich woman by inheritance. She owned the river "
                "boat Blue Heron, two mills and a brickyard.",
            ),
            (
                "Blue Heron",
                "The Blue Heron was a river boat with a flat bottom and a large cabin, owned by "
                "Mirela Stanek. The Blue Heron was turned into a floating school for deaf "
                "children. The boat moved from village to village in summer and stayed under the "
                "castle bridge in winter.",
            ),
        ),
    ),
)

TWOWIKI = (
    Question(
        "What was the first job of the director of the film Cold Bread, Osric Fallon?",
        ("selling second-hand bicycles at a railway station",),
        (
            (
                "Cold Bread",
                "Cold Bread is a film about a strike of bakers, directed by Osric Fallon. It was "
                "shown in only three cinemas.",
            ),
            (
                "Osric Fallon",
                "Osric Fallon is a film director. The first job of Osric Fallon, the director of "
                "the film Cold Bread, was selling second-hand bicycles at a railway station. He "
                "has made nine films.",
            ),
        ),
    ),
    Question(
        "Where is the original manuscript of the Lark Symphony by Edmund Vair kept?",
        ("in the vault of the Harbour Savings Bank",),
        (
            (
                "Edmund Vair",
                "Edmund Vair was the composer of the Lark Symphony and of forty songs. He earned "
                "his living as a customs clerk.",
            ),
            (
                "Lark Symphony",
                "The Lark Symphony is a symphony in three movements. The original manuscript of "
                "the Lark Symphony by Edmund Vair is kept in the vault of the Harbour Savings "
                "Bank. It was first played outdoors.",
            ),
        ),
    ),
    Question(
        "What did the aunt of the violinist Piet Ondra, Rosa Ondra, sell in the market?",
        ("painted eggs, goose feathers and prayer books",),
        (
            (
                "Piet Ondra",
                "Piet Ondra was a violinist who was brought up by his aunt, Rosa Ondra, after a "
                "fire had destroyed the family's farm.",
            ),
            (
                "Rosa Ondra",
                "Rosa Ondra, the aunt of the violinist Piet Ondra, sold painted eggs, goose "
                "feathers and prayer books in the market. With what she earned she bought him his "
                "first violin.",
            ),
        ),
    ),
)

MUSIQUE = (
    Question(
        "What did the botanist Hedda Storm discover on the island of Little Grimsa?",
        ("a blue moss that glows in winter",),
        (
            (
                "Sound of Grimsa",
                "The Sound of Grimsa separates the mainland from the island of Little Grimsa, "
                "which has no harbour and no trees.",
            ),
            (
                "Little Grimsa",
                "Little Grimsa is a rocky island that was first explored by the botanist Hedda "
                "Storm.",
            ),
            (
                "Hedda Storm",
                "Hedda Storm was a botanist. On the island of Little Grimsa the botanist Hedda "
                "Storm discovered a blue moss that glows in winter. She had crossed the sound "
                "alone in a rowing boat.",
            ),
        ),
    ),
    Question(
        "What did the diver Nils Overby find in the wreck of the ferry Queen Matilda?",
        ("a crate of unbroken porcelain violins",),
        (
            (
                "Queen Matilda",
                "The Queen Matilda was a ferry that sank in calm weather. The wreck was found by "
                "the diver Nils Overby.",
            ),
            (
                "Nils Overby",
                "Nils Overby was a diver and a maker of underwater films. In the wreck of the "
                "ferry Queen Matilda the diver Nils Overby found a crate of unbroken porcelain "
                "violins. He kept one of them on his piano.",
            ),
        ),
    ),
    Question(
        "What did the physicist who built the observatory on Mount Torvald, Greta Sund, invent?",
        ("a clock driven by melting snow",),
        (
            (
                "Mount Torvald",
                "Mount Torvald is the mountain above the monastery of Saint Ebba. On its top "
                "stands an observatory built by the physicist Greta Sund.",
            ),
            (
                "Greta Sund",
                "Greta Sund was a physicist. Greta Sund, who built the observatory on Mount "
                "Torvald, invented a clock driven by melting snow. It was never sold, since it "
                "stopped every summer.",
            ),
        ),
    ),
)


def context(picker: Picker, question: Question, passages: int) -> str:
    """Return numbered passages with the gold ones between 15 and 65 percent of the way."""
    deck = encyclopedia.new_deck(picker)
    kinds = picker.some(list(encyclopedia.KINDS), passages - len(question.gold))
    texts = [encyclopedia.article(picker, deck, kind, 4) for kind in kinds]
    last = int(0.6 * passages)
    places = sorted(picker.some(range(1, last + 1), len(question.gold)))
    for place, passage in zip(places, question.gold, strict=True):
        texts.insert(place, passage)
    return "\n".join(
        f"Passage {number}:\n{title}\n{text}" for number, (title, text) in enumerate(texts, 1)
    )
