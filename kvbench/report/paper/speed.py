"""Measured speeds as numbers to lay beside a paper's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvbench.plan.settings import Lengths
from kvbench.records.speed import Speed, SpeedRun
from kvbench.report.paper.published import Figure
from kvbench.report.paper.table import Beside, Number, Shares, at_budget

_LENGTHS = re.compile(r"(?:context|prefill) (\d+), generate (\d+)")


@dataclass(frozen=True)
class SpeedNumbers:
    """Numbers of `analysis=speed`."""

    runs: Sequence[SpeedRun]
    card: tuple[str, ...] = ()
    """Machine and versions."""

    def ours(self, figure: Figure, beside: Beside, columns: set[str]) -> Number:
        """Our speed of the same method and budget."""
        speed = self._speed_for(figure, beside)
        if speed is None:
            return Number(None)
        return Number(_quantities(speed, self._run_for(figure).lengths)[figure.task])

    def shares(self, figure: Figure, beside: Beside) -> Shares | None:
        """Bytes; the factors of Formula 15 are no part of a measured speed."""
        speed = self._speed_for(figure, beside)
        if speed is None or speed.is_baseline:
            return None
        return Shares(None, speed.cache_bytes / speed.native_bytes)

    def obstacles(self, figure: Figure, beside: Beside) -> list[str]:
        """Another model, machine or length; what random weights keep is not what a model's do."""
        run = self._run_for(figure)
        machine = str(run.machine.get("gpu") or run.machine.get("cpu") or run.machine.get("device"))
        published = figure.setting.partition(",")[0]
        found = []
        if run.model != figure.model:
            found.append(f"other model (ours {run.model}, published {figure.model})")
        if run.weights == "random weights":
            found.append("random weights")
        if published.partition(" ")[2] not in machine:
            found.append(f"other machine (ours {machine}, published {published})")
        printed = _LENGTHS.search(figure.setting)
        ours = (str(run.lengths.context), str(run.lengths.generate))
        if printed and printed.groups() != ours:
            found.append(
                f"other lengths (ours {' + '.join(ours)} tokens,"
                f" published {' + '.join(printed.groups())})"
            )
        return found

    def _speed_for(self, figure: Figure, beside: Beside) -> Speed | None:
        """Our speed of the same method and budget."""
        for name in beside.names(figure):
            speeds = [speed for speed in self._run_for(figure).speeds if speed.series == name]
            place = at_budget(beside.at_our_budget(figure), speeds)
            if place is not None:
                return speeds[place]
        return None

    def _run_for(self, figure: Figure) -> SpeedRun:
        """Our run of the same model; else the newest of any."""
        same = [run for run in self.runs if run.model == figure.model]
        return (same or list(self.runs))[-1]


def _quantities(speed: Speed, lengths: Lengths) -> dict[str, float]:
    """What papers print of a speed.

    WindowKV's throughput (its Table 2) is read as all tokens, prompt and answer, over all time: 764
    tokens/s and 1.31 ms a token for 7950 + 242 tokens, more than an 8B model decodes alone.
    """
    tokens = lengths.context + lengths.generate
    seconds = speed.prefill_s + speed.compress_s + speed.decode_s
    return {
        "decode_tokens_per_s": (lengths.generate - 1) / speed.decode_s,
        "tokens_per_s": tokens / seconds,
        "ms_per_token": 1000 * seconds / tokens,
    }
