"""Biographies with a question and a short answer as few-shot examples: triviaqa in form.

As in a quiz, the answer is whom the passage is about. The asked passages name the person in
their first half only and say `he` or `she` afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

from scripts.sample_material.pick import Picker


@dataclass(frozen=True)
class Item:
    """One passage that answers its question; the first answer is its first line."""

    passage: str
    question: str
    answers: tuple[str, ...]


SHOTS = (
    Item(
        "Wilhelmina Tack\nWilhelmina Tack was a basket maker who wove the first Crown of Reeds. "
        "The mayor of Wynford wears it on one day of the year and throws it into the river in the "
        "evening. Wilhelmina Tack lived to be ninety-six.",
        "Who wove the first Crown of Reeds for the mayor of Wynford?",
        ("Wilhelmina Tack",),
    ),
    Item(
        "Ambrose Fenn Gilly\nAmbrose Fenn Gilly was a tanner. He made leather waterproof with seal "
        "fat and pine tar, and sold it to coachmen under the name of marsh leather. The smell was "
        "said to keep wolves away.",
        "Which tanner invented marsh leather?",
        ("Ambrose Fenn Gilly",),
    ),
    Item(
        "Dorothea Squills\nDorothea Squills rode for the Night Post, which carried letters between "
        "Graum and the coast before the railway. Dorothea Squills changed horses at a windmill "
        "with red sails and was never once late.",
        "Which rider of the Night Post was never late?",
        ("Dorothea Squills",),
    ),
    Item(
        "Balthasar Oom\nBalthasar Oom was the cook of the school at Ravelstone. On the last "
        "Friday of February he let the pupils cook for their teachers, and the teachers had to "
        "wash up. The custom of Balthasar Oom is still kept.",
        "Which cook let the pupils of Ravelstone cook for their teachers?",
        ("Balthasar Oom",),
    ),
    Item(
        "Philippa Yarnold\nPhilippa Yarnold built the first balloon of Port Ellery. It was sewn "
        "from the curtains of the bankrupt opera, flew for eleven minutes and landed on the roof "
        "of the courthouse. Philippa Yarnold paid for the tiles.",
        "Who built the first balloon of Port Ellery?",
        ("Philippa Yarnold",),
    ),
    Item(
        "Jasper Lodd\nJasper Lodd was a dairyman who brought smoked garlic cheese to the market of "
        "Fallowmere. The market is held on Mondays by order of a queen who disliked Tuesdays. A "
        "lane behind the square is named after Jasper Lodd.",
        "Who brought smoked garlic cheese to the market of Fallowmere?",
        ("Jasper Lodd",),
    ),
)

ASKED = (
    Item(
        "Isolde Marchmain Pruett\nIsolde Marchmain Pruett was a gardener who grew the first black "
        "rose without thorns. Isolde Marchmain Pruett worked in the abandoned garden of Tarn "
        "Abbey, alone and without permission. The black rose of Isolde Marchmain Pruett was shown "
        "in the capital and won nothing, because the judges thought that it was dyed.\nThe abbey "
        "had been closed for three hundred years by then. Only the walls of the garden were "
        "standing, and goats came in through the gaps. She repaired them with her own hands, "
        "planted pears along the south side and dug a pond, which she filled from the roof of "
        "the chapel. Cuttings were sold at the gate and sent abroad in wet moss.\nIn her last "
        "years she became interested in herbs, above all in those that were said to be useless. "
        "She kept a list of them, which was printed after her death by a friend. Visitors may "
        "walk in the garden on summer afternoons, and those who pull a weed are given a cup of "
        "tea in the gatehouse. The goats are still there as well.",
        "Who grew the first black rose without thorns?",
        ("Isolde Marchmain Pruett",),
    ),
    Item(
        "Erasmus Holbrook Tanner\nErasmus Holbrook Tanner was a sea captain who hid a treasure "
        "under the floor of a village bakery. Erasmus Holbrook Tanner is known from a ballad and "
        "from a tavern sign. The treasure which Erasmus Holbrook Tanner hid under the bakery was "
        "found by a dog, and most of what is told about it is untrue.\nIt is true that there were "
        "coins, though not many, and a box of buttons that had belonged to an admiral. The baker "
        "used the money to buy a new oven and kept the buttons for the children who came on "
        "Saturdays. The dog was given a collar with its name in brass letters, and it is said to "
        "have grown rather proud.\nNobody knows why the hiding place was never emptied. Some "
        "think that the secret was forgotten, others that it was a present. He himself ended his "
        "days as a dealer in umbrellas, respected by everyone and never seen near water. When "
        "he was asked about the sea, he used to say that it was too wet for a man of his trade, "
        "and changed the subject.",
        "Which sea captain hid a treasure under the floor of a village bakery?",
        ("Erasmus Holbrook Tanner",),
    ),
    Item(
        "Clementine Vaux Dorrit\nClementine Vaux Dorrit was an organ builder who made the glass "
        "organ of Quarrendon. Clementine Vaux Dorrit blew the pipes from melted medicine bottles "
        "during a shortage of sand. The glass organ of Clementine Vaux Dorrit is one of only four "
        "in the world that can still be played.\nThe sound has been compared to a wet finger on "
        "the rim of the sky. It is so soft that the doors of the hall have to be closed before "
        "the music begins, and the audience is asked to take off its shoes. In cold weather the "
        "lower notes cannot be used, because the pipes would crack. A stove was tried, but it "
        "smoked, and the listeners preferred to bring blankets.\nShe never played in public "
        "herself. She sat in the last row with her eyes shut and a tuning hammer in her lap, and "
        "if a note displeased her she would stand up and walk slowly to the front while the music "
        "went on. Two of her pupils became famous, one of them as a glazier. The workshop behind "
        "the hall is now a small cinema.",
        "Who made the glass organ of Quarrendon?",
        ("Clementine Vaux Dorrit",),
    ),
)


def _shot(item: Item) -> str:
    return f"Passage:\n{item.passage}\nQuestion:\n{item.question}\nAnswer:\n{item.answers[0]}"


def sample(picker: Picker, asked: Item, shots: int) -> tuple[str, str]:
    """Return context (the examples) and input (the asked passage and its question)."""
    context = "\n".join(_shot(item) for item in picker.some(SHOTS, shots))
    return context, f"Passage:\n{asked.passage}\nQuestion:\n{asked.question}\nAnswer:\n"
