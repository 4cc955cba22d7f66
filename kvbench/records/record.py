"""Records: one line per (sample, variant), in JSONL shards that survive any crash.

A run folder holds one shard per writer process. A shard's first line is the run header; every
further line is a `Record`. Lines are appended whole and synced, so that the worst a crash leaves
is a torn last line, which readers skip. Knows nothing of models or tables.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Record:
    """The result of one variant on one sample."""

    key: str
    """Fingerprint of everything that can change the result; equal keys, equal results."""
    model: str
    """Name of the model."""
    suite: str
    """File stem in conf/task."""
    task: str
    """Task, such as narrativeqa."""
    group: str
    """The task's column group in the papers' tables."""
    sample: str
    """Identifier of the sample inside its task."""
    variant: str
    """Label of the table row: method@budget, with changed fields in brackets."""
    method: str
    """File stem in conf/method."""
    method_config: dict[str, Any]
    """The method's fields."""
    budget: float
    """What may be kept: a share of the native cache, in (0, 1], or tokens per head and layer."""
    budget_unit: str
    """`fraction` or `tokens`."""
    query_aware: bool
    """Whether the question was part of what was compressed."""
    prompt_tokens: int
    """Tokens of the prompt after truncation and template."""
    prefill_tokens: int
    """Tokens of the prompt that the prefill saw and the method compressed."""
    tokens_cut: int
    """Tokens that truncation removed from the prompt."""
    spans: dict[str, list[int]]
    """Name -> tokens [start, end) of the prompt, such as the needle; empty on most tasks."""
    span_kept: dict[str, list[float]]
    """Name -> per layer: share of the span's tokens kept, mean over the layout's heads."""
    prediction: str | None
    """Generated text; null after an error."""
    generated_tokens: int | None
    """Tokens generated, the stop token left out."""
    answers: list[str]
    """References."""
    scored_fields: dict[str, Any]
    """What else scoring reads of the sample, such as all_classes and length (in words)."""
    metric: str | None
    """Name of the main metric, the first of `scores`."""
    score: float | None
    """Value of the main metric, in [0, 1]; null after an error."""
    scores: dict[str, float]
    """Metric name -> value in [0, 1]."""
    kept_ratio: float | None
    """Tokens kept / prefilled tokens, mean over the layout's heads and over layers."""
    ratio_bytes: float | None
    """Bytes of every tensor the cache holds / bytes of the native full cache."""
    ratio_formula15: float | None
    """SpindleKV's Formula 15 with native denominators and the additive r3."""
    ratio_formula15_printed: float | None
    """SpindleKV's Formula 15 exactly as typeset."""
    r1: list[float]
    """Per layer: K and V vectors kept, copies counted / native K and V vectors."""
    r2: list[float]
    """Per layer: distinct vectors stored / vectors kept."""
    cache_bytes: int | None
    """Bytes of the compressed cache at the end of compression."""
    native_bytes: int | None
    """Bytes of the native full cache of the same tokens and dtype."""
    bytes_by_part: dict[str, int]
    """Bytes of each part of the cache; `tail`, what followed compression, is not in cache_bytes."""
    kept_tokens: list[float]
    """Per layer: tokens kept, mean over the layout's heads."""
    facts: dict[str, Any]
    """What the method says of itself: nominal budget searched for, saturated, schedule, ..."""
    decode_width: int | None
    """Rows decoded together, idle ones included."""
    capture_s: float | None
    """Seconds of the one prefill that all variants of the sample share."""
    compress_s: float | None
    """Seconds of compressing, the search for the budget included."""
    decode_s: float | None
    """Its share of the seconds of its decode steps, which the rows of a step divide."""
    error: str | None
    """What went wrong, in one line; null: nothing."""
    finished: str
    """Time the record was made, UTC, ISO 8601."""
    prompt_tail: str | None = None
    """Last 400 characters of the prompt as text, special tokens shown; null in older records."""
    decode_bytes: int | None = None
    """Bytes of every tensor held for it while it decoded, at most, beside the model; null in older
    records."""
    reader: str | None = None
    """What decoding read, and by what: `codebook (numba)`, `rebuilt rows (torch)`; null in older
    records."""
    code: str | None = None
    """Fingerprints of the code that made it, of the road that all share and of the method's own,
    joined by a dot; null in older records."""

    @property
    def ratio_decoding(self) -> float | None:
        """Bytes held while decoding, the tail among them / bytes of the native full cache."""
        if self.decode_bytes is None or not self.native_bytes:
            return None
        return self.decode_bytes / self.native_bytes


def now() -> str:
    """UTC time, ISO 8601, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
