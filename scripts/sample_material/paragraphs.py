"""Numbered paragraphs: passage_count and passage_retrieval_en in form."""

from __future__ import annotations

from scripts.sample_material import encyclopedia
from scripts.sample_material.pick import Picker


def _numbered(texts: list[str]) -> str:
    return "\n\n".join(f"Paragraph {number}: {text}" for number, text in enumerate(texts, 1))


def _texts(picker: Picker, count: int, sentences: int) -> list[str]:
    """Return `count` different paragraphs, the kinds taking turns."""
    deck = encyclopedia.new_deck(picker)
    kinds = list(encyclopedia.KINDS)
    order = [kind for _ in range(count // len(kinds) + 1) for kind in picker.shuffled(kinds)]
    return [encyclopedia.article(picker, deck, kind, sentences)[1] for kind in order[:count]]


def counted(picker: Picker, total: int, unique: int) -> str:
    """Return `total` paragraphs of which `unique` differ."""
    different = _texts(picker, unique, 4)
    repeats = [picker.one(different) for _ in range(total - unique)]
    return _numbered(picker.shuffled(different + repeats))


def retrieved(picker: Picker, total: int, source: int) -> tuple[str, str]:
    """Return the paragraphs and, as abstract, the words of paragraph number `source`."""
    texts = _texts(picker, total, 2)
    return _numbered(texts), texts[source - 1]
