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
        "The builder of the tower clock of Marle Abbey, Konrad Imhof, paid the stonemasons with "
        "what?",
        ("forty barrels of smoked herring", "with forty barrels of smoked herring"),
        (
            (
                "Marle Abbey",
                "Marle Abbey is a ruined abbey on a hill above the water meadows. Only the tower "
                "is still in use. The tower clock of Marle Abbey was made by Konrad Imhof, who "
                "also cast its two bells.",
            ),
            (
                "Konrad Imhof",
                "Konrad Imhof, the builder of the tower clock of Marle Abbey, came from the "
                "fishing coast and had more fish than money. Konrad Imhof paid the stonemasons "
                "with forty barrels of smoked herring. He later moved inland and made barometers.",
            ),
        ),
    ),
    Question(
        "The expedition of Ottoline Brask to the Senna Glacier was financed by which company?",
        ("the Northern Lamp Oil Company", "Northern Lamp Oil Company"),
        (
            (
                "Senna Glacier",
                "The Senna Glacier is a valley glacier that was first crossed by the expedition "
                "of Ottoline Brask. Its tongue ends in a lake full of drifting ice.",
            ),
            (
                "Ottoline Brask",
                "Ottoline Brask was a surveyor who made the first exact maps of the high "
                "glaciers. Her expedition to the Senna Glacier was financed by the Northern Lamp "
                "Oil Company, which hoped to sell lamps to the mountain villages. She wrote two "
                "books about snow.",
            ),
        ),
    ),
    Question(
        "The bread of Tobias Renn, the winner of the Brindle Cup, was baked with what?",
        (
            "roasted chestnuts, black honey and a little smoked salt",
            "roasted chestnuts, black honey and smoked salt",
        ),
        (
            (
                "Brindle Cup",
                "The Brindle Cup is a contest of bakers that takes place every fourth year. The "
                "last winner of the Brindle Cup was Tobias Renn, who beat thirty others.",
            ),
            (
                "Tobias Renn",
                "Tobias Renn is a baker and writer of cookery books. The bread with which Tobias "
                "Renn became the winner of the Brindle Cup was baked with roasted chestnuts, "
                "black honey and a little smoked salt. His oven belonged to his grandmother.",
            ),
        ),
    ),
    Question(
        "The river boat Blue Heron, owned by Mirela Stanek, was turned into what?",
        ("a floating school for deaf children", "floating school for deaf children"),
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
        "What was the occupation of Jonas Feldmark's father, who appears in the film The Salt "
        "Orchard?",
        ("a maker of glass eyes for dolls and bears", "maker of glass eyes for dolls and bears"),
        (
            (
                "The Salt Orchard",
                "The Salt Orchard is a black and white film about two sisters on an island. It "
                "was directed by Jonas Feldmark, whose father appears in it as the postman.",
            ),
            (
                "Jonas Feldmark",
                "Jonas Feldmark is a film director. Jonas Feldmark's father was by occupation a "
                "maker of glass eyes for dolls and bears. Feldmark studied chemistry before he "
                "bought his first camera.",
            ),
        ),
    ),
    Question(
        "Where was Sibyl Aumont, the composer of Nine Grey Geese, buried?",
        (
            "under the old walnut tree at Perrin Manor",
            "She was buried under the old walnut tree at Perrin Manor",
        ),
        (
            (
                "Nine Grey Geese",
                "Nine Grey Geese is a song for four voices by Sibyl Aumont, who never saw it "
                "printed.",
            ),
            (
                "Sibyl Aumont",
                "Sibyl Aumont was a writer of songs and church music. Sibyl Aumont, the composer "
                "of Nine Grey Geese, was buried under the old walnut tree at Perrin Manor. Her "
                "piano was sold to pay her debts.",
            ),
        ),
    ),
    Question(
        "Elin Sorgen, the wife of the architect Lorenz Habicht, founded which school?",
        ("the Dovecote School of Weaving and Dyeing", "Dovecote School of Weaving and Dyeing"),
        (
            (
                "Lorenz Habicht",
                "Lorenz Habicht was an architect of theatres and bath houses. His wife was Elin "
                "Sorgen, and they had five children.",
            ),
            (
                "Elin Sorgen",
                "Elin Sorgen was a textile artist. Elin Sorgen, the wife of the architect Lorenz "
                "Habicht, founded the Dovecote School of Weaving and Dyeing in an empty "
                "farmhouse. Her carpets hang in two parliaments.",
            ),
        ),
    ),
    Question(
        "What was the cause of death of Dunstan Kell, the performer of the song Harbour of Straw?",
        ("a fall from a church ladder", "fall from a church ladder"),
        (
            (
                "Harbour of Straw",
                "Harbour of Straw is a slow ballad about emigrants. The performer of the song "
                "Harbour of Straw was Dunstan Kell, a tenor with a lisp.",
            ),
            (
                "Dunstan Kell",
                "Dunstan Kell was a tenor and comedian. The cause of death of Dunstan Kell, the "
                "performer of Harbour of Straw, was a fall from a church ladder. He had wanted "
                "to free a trapped pigeon.",
            ),
        ),
    ),
)

MUSIQUE = (
    Question(
        "The village of Little Sedge, where the novelist Clemence Arrowby was born, produces what?",
        ("violin strings, fishing nets and wedding hats",),
        (
            (
                "The Tin Sparrow",
                "The Tin Sparrow is a novel by Clemence Arrowby about a strike in a toy factory.",
            ),
            (
                "Clemence Arrowby",
                "Clemence Arrowby was an amateur astronomer and the author of The Tin Sparrow. "
                "She was born in the village of Little Sedge, in the house of the ferryman.",
            ),
            (
                "Little Sedge",
                "Little Sedge, the village where the novelist Clemence Arrowby was born, produces "
                "violin strings, fishing nets and wedding hats. It has one street and no church.",
            ),
        ),
    ),
    Question(
        "Lantern Field, the stadium of the club Corbel Rovers, was designed by whom?",
        (
            "the nun and mathematician Agnes Tolliver",
            "Agnes Tolliver, a nun and mathematician",
        ),
        (
            (
                "Corbel Rovers",
                "Corbel Rovers is a football club. The stadium of Corbel Rovers is Lantern Field, "
                "beside the gasworks.",
            ),
            (
                "Lantern Field",
                "Lantern Field is the stadium where Corbel Rovers plays. Lantern Field was "
                "designed by the nun and mathematician Agnes Tolliver, who had never watched a "
                "match. Its stands form a perfect ellipse.",
            ),
        ),
    ),
    Question(
        "When the house of the poet Ruben Castellane was repaired, what was found in the cellar?",
        ("three hundred unsent love letters", "300 unsent love letters"),
        (
            (
                "Ruben Castellane",
                "Ruben Castellane was a poet who wrote in four languages. His house was the Stork "
                "House, behind the fish market.",
            ),
            (
                "Stork House",
                "The Stork House was the home of the poet Ruben Castellane. When the house was "
                "repaired, three hundred unsent love letters were found in the cellar. The house "
                "is open to visitors on Sundays.",
            ),
        ),
    ),
    Question(
        "The mountain above the monastery of Saint Ebba, Mount Torvald, has which nickname?",
        ("the Old Man's Broken Tooth", "Old Man's Broken Tooth"),
        (
            (
                "Monastery of Saint Ebba",
                "The monastery of Saint Ebba is a walled monastery with a famous library. It lies "
                "at the foot of Mount Torvald.",
            ),
            (
                "Mount Torvald",
                "Mount Torvald is the mountain above the monastery of Saint Ebba. Mount Torvald "
                "has the nickname the Old Man's Broken Tooth, because its top was split by "
                "lightning.",
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
