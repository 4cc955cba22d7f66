"""ROUGE of one generated summary, for `xsum.yaml`.

KVCrush says "accuracy" of XSUM and names no variant of ROUGE, so all three usual F measures are
reported, with the Porter stemmer, as the summarization literature does; ROUGE-L comes first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

KINDS = ("rougeL", "rouge1", "rouge2")


def process_results(document: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """F measures in [0, 1] of the generated summary against the document's own."""
    scores = _scorer().score(document["summary"], results[0])
    return {kind: float(scores[kind].fmeasure) for kind in KINDS}


@lru_cache(maxsize=1)
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(list(KINDS), use_stemmer=True)
