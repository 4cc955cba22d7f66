"""Writes the sample suite, `kvbench/data/samples/<task>.jsonl`, from seeds; equal bytes every time.

    python scripts/make_samples.py [FOLDER]

The records have LongBench's format and none of its text: everything is put together from the
prose in `scripts/sample_material/*.json`, which was written for this project.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from make_haystack import Deck, Picker, material

ROOT = Path(__file__).resolve().parent.parent
SEED = "kvbench-sample-1"

Record = dict[str, Any]
Item = Mapping[str, Any]
"""One entry of a file of prose: a story, a meeting, a question."""


def picker(task: str, index: int) -> Picker:
    """Return the seeded source of chance for one record."""
    return Picker(f"{SEED}/{task}/{index}")


def record(
    task: str,
    context: str,
    answers: Sequence[str],
    question: str = "",
    language: str = "en",
    classes: Sequence[str] | None = None,
) -> Record:
    """Return one record with LongBench's fields; `length` counts words of context and input."""
    return {
        "input": question,
        "context": context,
        "answers": list(answers),
        "length": len(f"{context} {question}".split()),
        "dataset": task,
        "language": language,
        "all_classes": None if classes is None else list(classes),
        "_id": hashlib.blake2b(f"{task}{context}{question}".encode(), digest_size=24).hexdigest(),
    }


# One document.


def narrativeqa() -> Iterator[Record]:
    """Yield stories: a plot in four parts, with scenes of the hero's journey between them."""
    prose = material("stories")
    for index, item in enumerate(prose["stories"]):
        scenes = picker("narrativeqa", index).some(prose["scenes"], 8)
        told = [scene.format(hero=item["hero"], **item["pronouns"]) for scene in scenes]
        told = [text[0].upper() + text[1:] for text in told]
        plot = item["plot"]
        # The question is about the turn: it stands about a third of the way in.
        parts = [plot["opening"], *told[:2], plot["turn"], *told[2:5], plot["second_turn"]]
        text = "\n\n".join([item["title"], *parts, *told[5:], plot["end"]])
        yield record("narrativeqa", text, item["answers"], item["question"])


def qasper() -> Iterator[Record]:
    """Yield articles: a study's own paragraphs among those that any article might have."""
    stock = material("articles")
    for index, study in enumerate(stock["studies"]):
        chance = picker("qasper", index)
        # The data and method sections, which answer the question, stand before the middle.
        sections = {
            "Introduction": [study["opening"]],
            "Data": [study["data"]],
            "Method": [study["method"]],
            "Related Work": chance.in_order(stock["related"], 3),
            "Experiments": chance.some(stock["details"], 4),
            "Results": [study["result"]],
            "Conclusion": [chance.one(stock["closing"]), chance.one(stock["future"])],
            "Acknowledgments": stock["thanks"],
        }
        text = "\n".join("\n".join([head, *body]) for head, body in sections.items())
        text = text.format(topic=study["topic"], system=study["system"], group=study["group"])
        yield record("qasper", text, study["answers"], study["question"])


def multifieldqa_en() -> Iterator[Record]:
    """Yield handbooks: one drawn paragraph before the fact that is asked for, the rest after."""
    for index, item in enumerate(material("handbooks")):
        before, *after = picker("multifieldqa_en", index).some(item["stock"], 11)
        text = "\n\n".join([item["title"], item["opening"], before, item["fact"], *after])
        yield record("multifieldqa_en", text, item["answers"], item["question"])


# Encyclopedia articles: the other passages of several tasks.


class Encyclopedia:
    """Short articles on invented places, people and things; within one record no name recurs.

    An article is a kind (`bridge`, `painter`, ...): a title and, for each sentence, hand-written
    alternatives. `{x:a}` names the same thing throughout one article.
    """

    def __init__(self, chance: Picker) -> None:
        """Start on fresh lists of names and numbers."""
        prose = material("encyclopedia")
        words = prose["words"]
        drawn = {
            "person": [f"{a} {b}" for a, b in zip(words["given"], words["family"], strict=True)],
            "later": [str(year) for year in range(1990, 2021)],
            "count": [str(count) for count in range(13, 98, 4)],
            "hundred": [str(count) for count in range(140, 980, 30)],
        }
        self.kinds: Mapping[str, Item] = prose["kinds"]
        self._chance = chance
        self._deck = Deck(chance, words | drawn)

    def article(self, kind: str, sentences: int) -> tuple[str, str]:
        """Return title and text of one article; the lead is always among its 1 to 4 sentences."""
        lead, *others = self.kinds[kind]["sentences"]
        chosen = [lead, *self._chance.in_order(others, sentences - 1)]
        body = " ".join(self._chance.one(alternatives) for alternatives in chosen)
        title = self.kinds[kind]["title"]
        head, _, text = self._deck.fill(self._with_years(f"{title}\n{body}")).partition("\n")
        return head, text

    def _with_years(self, text: str) -> str:
        """Replace each `{year}` by a year; years rise along the article."""
        parts = text.split("{year}")
        year = self._chance.between(1795, 1890)
        for index in range(1, len(parts)):
            parts[index] = f"{year}{parts[index]}"
            year += self._chance.between(4, 27)
        return "".join(parts)


def towns(chance: Picker, count: int) -> list[str]:
    """Return different towns of the encyclopedia."""
    return chance.some(material("encyclopedia")["words"]["town"], count)


# Several documents.


def multi_document() -> Iterator[Record]:
    """Yield questions over the gold passages of three tasks, among encyclopedia articles.

    The sentence that answers a question shares its distinctive words with it.
    """
    for task, asked in material("passages").items():
        for index, item in enumerate(asked):
            chance = picker(task, index)
            text = passages(chance, [(each["title"], each["text"]) for each in item["gold"]], 9)
            yield record(task, text, item["answers"], item["question"])


def passages(chance: Picker, gold: Sequence[tuple[str, str]], count: int) -> str:
    """Return numbered passages with the gold ones between 15 and 65 percent of the way."""
    encyclopedia = Encyclopedia(chance)
    kinds = chance.some(list(encyclopedia.kinds), count - len(gold))
    texts = [encyclopedia.article(kind, 4) for kind in kinds]
    places = sorted(chance.some(range(1, int(0.6 * count) + 1), len(gold)))
    for place, passage in zip(places, gold, strict=True):
        texts.insert(place, passage)
    return "\n".join(
        f"Passage {number}:\n{title}\n{text}" for number, (title, text) in enumerate(texts, 1)
    )


# Examples of a format, and one to go on with.


def trec() -> Iterator[Record]:
    """Yield typed questions; every example of the asked class stands before three quarters.

    A class is an answer type. The first words of its questions recur, so that an earlier example
    of the class settles the type of the last question.
    """
    kinds = material("questions")
    classes = [kind["label"] for kind in kinds]
    for index, label in enumerate(classes[1::3]):
        chance = picker("trec", index)
        early: list[str] = []
        late: list[str] = []
        last = ""
        for kind in kinds:
            asked = [kind["pattern"].format(word) for word in chance.some(kind["words"], 6)]
            lines = [f"Question: {question}\nType: {kind['label']}" for question in asked]
            if kind["label"] == label:
                last = f"Question: {asked[5]}\nType:"
                early += lines[:5]
            else:
                early += lines[:2]
                late += lines[2:3]
        text = "\n".join(chance.shuffled(early) + chance.shuffled(late))
        yield record("trec", text, [label], last, classes=classes)


def triviaqa() -> Iterator[Record]:
    """Yield biographies; as in a quiz, the answer is whom the passage is about.

    The asked passages name the person in their first half only and say `he` or `she` afterwards.
    """

    def asked(item: Item) -> str:
        passage = "\n".join([item["person"], *item["passage"]])
        return f"Passage:\n{passage}\nQuestion:\n{item['question']}\nAnswer:\n"

    prose = material("quiz")
    for index, item in enumerate(prose["asked"]):
        shots = picker("triviaqa", index).some(prose["shots"], 6)
        text = "\n".join(asked(shot) + shot["person"] for shot in shots)
        yield record("triviaqa", text, [item["person"]], asked(item))


def samsum() -> Iterator[Record]:
    """Yield dialogues with a summary; small talk of the same `people` follows the asked one."""

    def asked(lines: Sequence[str]) -> str:
        # CRLF inside a dialogue, as in the original format.
        return "Dialogue: " + "\r\n".join(lines) + "\nSummary: "

    prose = material("dialogues")
    for index, item in enumerate(prose["asked"]):
        chance = picker("samsum", index)
        shots = chance.some(prose["shots"], 8)
        text = "\n".join(asked(shot["lines"]) + shot["summaries"][0] for shot in shots)
        a, b = item["people"]
        exchanges = chance.some(prose["small_talk"], 2)
        talk = [line.format(a=a, b=b) for exchange in exchanges for line in exchange]
        yield record("samsum", text, item["summaries"], asked([*item["lines"], *talk]))


# Texts with a summary, which reuses their wording. Two records a task: the model seldom ends a
# summary by itself, so each costs all 512 tokens.


def gov_report() -> Iterator[Record]:
    """Yield reports: findings, then figures by district, so that the end holds no finding."""
    for index, report in enumerate(material("reports")[:2]):
        chance = picker("gov_report", index)
        table = [" | ".join(["District", *report["columns"]])]
        for town in towns(chance, 30):
            figures = chance.between(10, 90), chance.between(1, 9), chance.between(100, 900)
            table.append(" | ".join([town, *map(str, figures)]))
        appendix = "Appendix: figures by district\n\n" + "\n".join(table)
        yield record("gov_report", f"{report['findings']}\n\n{appendix}", [report["summary"]])


def qmsum() -> Iterator[Record]:
    """Yield meetings; the exchange that answers the query stands a quarter of the way in."""
    prose = material("meetings")
    for index, meeting in enumerate(prose["meetings"][:2]):
        exchanges = picker("qmsum", index).some(prose["exchanges"], 11)
        told = (line.split(":")[0] for line in meeting["opening"] + meeting["decisive"])
        a, b, c = dict.fromkeys(told)
        exchanges.insert(len(exchanges) // 4, meeting["decisive"])
        talk = [line for exchange in [*exchanges, prose["closing"]] for line in exchange]
        lines = [*meeting["opening"], *(line.format(a=a, b=b, c=c) for line in talk)]
        yield record("qmsum", "\n".join(lines), meeting["answers"], meeting["query"])


def multi_news() -> Iterator[Record]:
    """Yield an event as told by two papers, then the weather, so that the end holds no news."""
    for index, event in enumerate(material("news")[:2]):
        chance = picker("multi_news", index)
        table = ["Town | High | Low | Rain"]
        for town in towns(chance, 30):
            figures = chance.between(15, 29), chance.between(1, 14), chance.between(10, 90)
            table.append(" | ".join([town, *map(str, figures)]))
        weather = "Appendix: yesterday's weather\n\n" + "\n".join(table)
        text = f"Passage 1:\n{event['first']}\n\nPassage 2:\n{event['second']}\n\n{weather}"
        yield record("multi_news", text, [event["summary"]])


# Paragraphs to count and paragraphs to find.


def paragraphs(chance: Picker, count: int, sentences: int) -> list[str]:
    """Return different encyclopedia paragraphs, the kinds taking turns."""
    encyclopedia = Encyclopedia(chance)
    kinds = list(encyclopedia.kinds)
    order = [kind for _ in range(count // len(kinds) + 1) for kind in chance.shuffled(kinds)]
    return [encyclopedia.article(kind, sentences)[1] for kind in order[:count]]


def numbered(texts: Sequence[str]) -> str:
    """Return the paragraphs under their numbers."""
    return "\n\n".join(f"Paragraph {number}: {text}" for number, text in enumerate(texts, 1))


def passage_count() -> Iterator[Record]:
    """Yield paragraphs of which some stand more than once; the answer is how many differ."""
    for index, (total, unique) in enumerate(((9, 6), (10, 8), (11, 7), (12, 10))):
        chance = picker("passage_count", index)
        different = paragraphs(chance, unique, 4)
        repeats = [chance.one(different) for _ in range(total - unique)]
        text = numbered(chance.shuffled(different + repeats))
        yield record("passage_count", text, [str(unique)])


def passage_retrieval_en() -> Iterator[Record]:
    """Yield paragraphs and, as abstract, the words of one of them; the answer is its number."""
    for index, source in enumerate((4, 11, 17, 8)):
        texts = paragraphs(picker("passage_retrieval_en", index), 30, 2)
        answers = [f"Paragraph {source}"]
        yield record("passage_retrieval_en", numbered(texts), answers, texts[source - 1])


# Programs cut before a line. A program is a script in rounds. Every round opens with the same
# statements, its refrain, and the cut comes before the refrain of the last round, so it can only
# be copied from far above. In repobench-p another file of the project has it too.


def rounds(chance: Picker, script: Item, first: int, count: int, steps: int) -> list[str]:
    """Return the lines of some rounds; a step is `{machine}.{verb}({thing}, {option})`."""
    lines: list[str] = []
    for number in range(first, first + count):
        lines += [script["mark"].format(number), *script["refrain"]]
        for thing in chance.some(script["things"], steps):
            verb = chance.one(script["verbs"])
            option = chance.one(script["options"]).format(n=chance.between(2, 9))
            lines.append(f'{script["machine"]}.{verb}("{thing}", {option})')
        lines.append("")
    return lines


def imports(script: Item) -> str:
    """Return the line that imports the two objects a script uses."""
    other = script["refrain"][1].split(".")[0]
    return f"from {script['name']} import {', '.join(sorted((script['machine'], other)))}"


def module(script: Item) -> str:
    """Return the class of a script's machine."""
    methods = "\n\n".join(
        f"    def {verb}(self, thing, **options):\n"
        f'        self.done.append(("{verb}", thing, options))'
        for verb in script["verbs"][:4]
    )
    return (
        f'class {script["machine"].capitalize()}:\n    """Keeps a list of what was done."""\n\n'
        f"    def __init__(self):\n        self.done = []\n\n{methods}\n"
    )


def lcc() -> Iterator[Record]:
    """Yield one file each; the last round before the cut fills more than its last fifth."""
    for index, script in enumerate(material("programs")):
        chance = picker("lcc", index)
        lines = [f'"""{script["doc"]}"""', "", imports(script), ""]
        lines += rounds(chance, script, 1, 4, 7) + rounds(chance, script, 5, 1, 16)
        text = "\n".join([*lines, script["mark"].format(6)]) + "\n"
        yield record("lcc", text, script["refrain"][:1], language="python")


def repobench_p() -> Iterator[Record]:
    """Yield a cut file as input and two other files of its project as context."""
    for index, script in enumerate(material("programs")):
        chance = picker("repobench-p", index)
        name = script["name"]
        morning = "\n".join([imports(script), "", *rounds(chance, script, 1, 2, 7)])
        evening = [imports(script), "", *rounds(chance, script, 1, 1, 5)]
        evening += rounds(chance, script, 2, 1, 16)
        cut = "\n".join([*evening, script["mark"].format(3)]) + "\n"
        text = f"{name}/__init__.py\n{module(script)}\n{name}/morning.py\n{morning}"
        yield record("repobench-p", text, script["refrain"][:1], cut, language="python")


TASKS = (
    narrativeqa,
    qasper,
    multifieldqa_en,
    multi_document,
    gov_report,
    qmsum,
    multi_news,
    trec,
    triviaqa,
    samsum,
    passage_count,
    passage_retrieval_en,
    lcc,
    repobench_p,
)


def main(folder: Path) -> None:
    """Write one file per task."""
    lines: dict[str, list[str]] = {}
    for task in TASKS:
        for item in task():
            lines.setdefault(item["dataset"], []).append(json.dumps(item, ensure_ascii=False))
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in lines.items():
        (folder / f"{name}.jsonl").write_bytes("".join(f"{row}\n" for row in rows).encode())


if __name__ == "__main__":
    default = ROOT / "kvbench" / "data" / "samples"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else default)
