"""Typed questions as few-shot examples: trec in form, with classes of its own.

A class is an answer type; its questions come from hand-written patterns whose first words recur,
so that an earlier example of the class settles the type of the last question.
"""

from __future__ import annotations

from dataclasses import dataclass

from scripts.sample_material.pick import Picker


@dataclass(frozen=True)
class Kind:
    """One class: a pattern with `{}` and the words that fill it."""

    label: str
    pattern: str
    words: tuple[str, ...]


KINDS = (
    Kind(
        "Creature, wild or tame",
        "What creature {} ?",
        (
            "builds its nest on the arms of windmills",
            "steals the fishermen 's bait at night",
            "sleeps under the snow in a ball of moss",
            "was painted on the shields of the Harrow guard",
            "can smell rain a day before it falls",
            "is said to warn miners of bad air",
        ),
    ),
    Kind(
        "Remedy for an illness",
        "What did country doctors give for {} ?",
        (
            "a cough that would not go away",
            "a toothache in winter",
            "sore feet after the harvest",
            "the shaking fever of the marshes",
            "a child that could not sleep",
            "a sting behind the ear",
        ),
    ),
    Kind(
        "Implement of a trade",
        "Which implement does a {} need ?",
        (
            "cooper to bend the staves",
            "thatcher to beat down the reed",
            "bookbinder to press the spine",
            "beekeeper to calm the hive",
            "glazier to cut a round pane",
            "saddler to make holes in leather",
        ),
    ),
    Kind(
        "Water such as a lake",
        "Into what water does {} ?",
        (
            "the mill stream of Hollin run",
            "the old canal of Varne empty",
            "the spring at Cold Harrow flow",
            "the city of Graum drain its baths",
            "the glacier below Mount Torvald melt",
            "the brook behind the abbey fall",
        ),
    ),
    Kind(
        "Sum in old coins",
        "How much did {} cost ?",
        (
            "a seat on the first tram",
            "a barrel of herring before the war",
            "the bronze doors of the exchange",
            "a letter sent by balloon",
            "the toll for a cart with two horses",
            "a pair of boots at the Whitlock fair",
        ),
    ),
    Kind(
        "Music for an occasion",
        "What piece of music was {} ?",
        (
            "sung at the opening of the canal",
            "forbidden by the bishop of Tessaly",
            "written in a prison cell",
            "played when the last tram left",
            "hummed by the weavers of Orm",
            "performed with nine drums and a saw",
        ),
    ),
    Kind(
        "Reason behind a custom",
        "Why do people in {} ?",
        (
            "Low Staithe leave a shoe on the roof",
            "the islands paint their doors twice a year",
            "Graum never whistle on bridges",
            "Kettlesby bake a coin into the bread",
            "the valley close the shutters at noon",
            "Velmary greet the first swallow with bells",
        ),
    ),
    Kind(
        "Ingredient of a dish",
        "What is put into {} ?",
        (
            "the dumplings of the Osier Coast",
            "a miner 's Sunday pie",
            "the soup that cured the duke",
            "green bread in the north",
            "the filling of a Tarn Abbey pancake",
            "sailor 's pudding to keep it fresh",
        ),
    ),
    Kind(
        "Distance on the ground",
        "How far is it from {} ?",
        (
            "the lighthouse to the reef",
            "Hollin to the slate quarries",
            "the ferry to the nearest inn",
            "one milestone to the next in Ardenfell",
            "the bell tower to the harbour gate",
            "the mouth of the Orne to the first lock",
        ),
    ),
    Kind(
        "Founder of a firm",
        "Who started the firm that {} ?",
        (
            "made the first folding ladders",
            "printed tickets for every railway",
            "sold ice from Lake Verrall",
            "built barometers for bakers",
            "shipped candles to the islands",
            "wove the carpets of two parliaments",
        ),
    ),
    Kind(
        "Sense of an old word",
        "What is meant by the term {} ?",
        (
            "a larkspit in the old laws",
            "hobnail rent",
            "a thrumble among weavers",
            "gallybread in sea songs",
            "a dusk warden",
            "quern money",
        ),
    ),
    Kind(
        "Part of the year",
        "At what time of year do {} ?",
        (
            "the herring come into the sound",
            "the shepherds leave the high pastures",
            "the reed cutters begin their work",
            "the salt pans dry out",
            "the night trains stop running",
            "the bees swarm in Merrendale",
        ),
    ),
)
CLASSES = tuple(kind.label for kind in KINDS)


def sample(picker: Picker, asked: str) -> tuple[str, str]:
    """Return context and input; every example of class `asked` stands before three quarters.

    Args:
        picker: the record's source of chance.
        asked: label of the class of the last question.
    """
    early: list[str] = []
    late: list[str] = []
    last = ""
    for kind in KINDS:
        words = picker.some(kind.words, 6)
        lines = [f"Question: {kind.pattern.format(word)}\nType: {kind.label}" for word in words]
        if kind.label == asked:
            last = f"Question: {kind.pattern.format(words[5])}\nType:"
            early += lines[:5]
        else:
            early += lines[:2]
            late += lines[2:3]
    text = picker.shuffled(early) + picker.shuffled(late)
    return "\n".join(text), last
