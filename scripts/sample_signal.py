"""Check that the sample suite has a signal: FullKV answers, and StreamingLLM at 0.2 loses.

    kvbench run method=streamingllm budget=0.2 out=results/runs/signal
    python scripts/sample_signal.py results/runs/signal

Prints both averages and the tasks FullKV solves; exits 1 where a bar is missed.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from kvbench.records.reader import distinct, read_shards

LEAST_AVERAGE = 30.0
LEAST_TASKS_ABOVE_20 = 10
LEAST_LOSS = 8.0


def averages(folder: Path) -> dict[str, dict[str, float]]:
    """Variant -> task -> mean score x100 of a run folder."""
    scores: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _, record in distinct(read_shards(folder)):
        if record.score is not None:
            scores[record.variant][record.task].append(100 * record.score)
    return {v: {t: fmean(x) for t, x in tasks.items()} for v, tasks in scores.items()}


def main() -> None:
    """Print what was measured against each bar."""
    found = averages(Path(sys.argv[1]))
    full, streaming = found["fullkv"], found["streamingllm@0.2"]
    if not len(full) == len(streaming) == 16:
        sys.exit(f"{sys.argv[1]} holds {len(full)} of the 16 tasks")
    average, loss = fmean(full.values()), fmean(full.values()) - fmean(streaming.values())
    above = sum(score > 20 for score in full.values())
    print(f"FullKV AVG {average:.2f} (at least {LEAST_AVERAGE})")
    print(f"FullKV tasks above 20: {above} (at least {LEAST_TASKS_ABOVE_20})")
    print(f"StreamingLLM at 0.2 loses {loss:.2f} points (at least {LEAST_LOSS})")
    held = average >= LEAST_AVERAGE and above >= LEAST_TASKS_ABOVE_20 and loss >= LEAST_LOSS
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
