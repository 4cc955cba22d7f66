"""Runs of needles written by hand, for what reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvbench.records.record import Record
from support.runs import A_RECORD, header

Cells = Mapping[tuple[int, int], float]
"""Scores by (length, depth)."""


def needle_header(
    labels: Sequence[str], lengths: Any, depths: Any, **changes: Any
) -> dict[str, Any]:
    made = header(labels=labels, tasks=["qasper"])
    made["tasks"][0] |= {"name": "needle", "group": "Needle", "samples": 4, "max_new_tokens": 30}
    made["suite"] = "needle"
    made["config"]["task"] = {
        "_target_": "kvbench.tasks.needle.Needle",
        "lengths": lengths,
        "depths": depths,
        "profile": "chat",
    }
    made["data"] |= {"setting": "needle", "description": "hay", "hashes": {"needle": "h"}}
    return {**made, **changes}


def needle_records(label: str, cells: Cells, kept: Sequence[float] = (0.5, 0.1)) -> list[Record]:
    return [
        replace(
            A_RECORD,
            key=f"{label} {length} {depth}",
            suite="needle",
            task="needle",
            group="Needle",
            sample=f"{length} at {depth}%",
            variant=label,
            method=label.partition("@")[0],
            scored_fields={"length": length, "depth": depth},
            spans={"needle": [3, 9]},
            span_kept={"needle": list(kept)},
            metric="overlap",
            score=score,
            scores={"overlap": score, "rouge1": score / 2},
        )
        for (length, depth), score in cells.items()
    ]
