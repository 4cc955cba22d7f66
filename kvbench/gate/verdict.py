"""A run beside its baseline, compared in three ways: exactly, by token and by score.

What a method keeps is arithmetic and must not move. Generated text may: another processor can flip
a token, so a share of the samples is tolerated. Scores are judged by statistics, and by a rule
that needs none: the same text must score the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path

from kvbench.base.errors import UserError
from kvbench.records.record import Record
from kvbench.report.table.runs import Pair, ResultName, results_of
from kvbench.report.table.stats import Difference, holm, mean_of_means, paired_difference

COMPARISONS = ("exact", "tokens", "scores")

SAME = ("method_config", "prompt_tokens", "prefill_tokens", "tokens_cut", "native_bytes", "spans")
"""Fields that are equal or not."""

RATIOS = ("kept_ratio", "ratio_bytes", "ratio_formula15", "ratio_formula15_printed")

ROUNDING = 1e-9
"""Of ratios and scores that were summed in another order."""

SEARCHED = 0.01
"""Of ratios whose budget was searched for: each search ends within 0.004 of it, so two processors
that round differently can end on its two sides."""


@dataclass(frozen=True)
class Tolerance:
    """What may change without being a regression."""

    changed: float = 0.1
    """Share of a variant's predictions."""
    margin: float = 1.0
    """Points that a variant's mean score may fall, x100."""
    level: float = 0.05
    """Corrected p from which a fall counts."""


@dataclass(frozen=True)
class Check:
    """One comparison of one variant."""

    comparison: str
    """One of `COMPARISONS`."""
    variant: str
    problems: tuple[str, ...]
    """A line each; none: it holds."""


@dataclass(frozen=True)
class Fall:
    """How a variant's mean score changed."""

    before: float
    """Mean over suites of the mean over samples, x100."""
    difference: Difference
    """After - before, paired by sample."""
    corrected_p: float
    """By Holm, for all variants."""


@dataclass(frozen=True)
class Verdict:
    """All comparisons of a run with its baseline."""

    checks: tuple[Check, ...]
    """By variant, in the baseline's order."""
    pairs: Mapping[str, tuple[Pair, ...]]
    """Variant -> its samples that both scored."""
    falls: Mapping[str, Fall]
    """Variant -> its change of score, where it has a sample in both."""
    added: tuple[str, ...]
    """Variants that the baseline does not know."""

    @property
    def failed(self) -> tuple[Check, ...]:
        """Those with a problem."""
        return tuple(check for check in self.checks if check.problems)

    @property
    def changed_predictions(self) -> int:
        """Over all variants."""
        return sum(not p.same_prediction for of_one in self.pairs.values() for p in of_one)


def judged(baseline: Path, run: Path, tolerance: Tolerance, narrowed: bool = False) -> Verdict:
    """Compare a run with its baseline.

    Args:
        baseline: run folder.
        run: run folder.
        tolerance: what may change.
        narrowed: the run was meant to repeat a part only; variants and tasks that it did not plan
            are not missing.

    Raises:
        UserError: a folder holds no records, or two results of one sample and variant; or a
            narrowed run has nothing of the baseline.
    """
    before, after = results_of(baseline).scored, results_of(run)
    if narrowed:
        before = {n: r for n, r in before.items() if (n.variant, n.task) in after.planned}
        if not before:
            raise UserError(
                f"{baseline} holds nothing of what {run} ran: give words that narrow it"
            )
    pairs: dict[str, list[Pair]] = {name.variant: [] for name in before}
    missing: dict[str, list[ResultName]] = {variant: [] for variant in pairs}
    for name, record in before.items():
        if name in after.scored:
            pairs[name.variant].append(Pair(record, after.scored[name]))
        else:
            missing[name.variant].append(name)
    falls = _falls(pairs)
    checks = []
    for variant, of_one in pairs.items():
        lost = missing[variant]
        said_lost = [_said_missing(lost, len(of_one), after.failed)] if lost else []
        found = (
            [*said_lost, *_exact_problems(of_one)],
            list(_token_problems(of_one, tolerance)),
            [*_rescored(of_one), *_falling(falls.get(variant), tolerance)],
        )
        checks += [
            Check(comparison, variant, tuple(problems))
            for comparison, problems in zip(COMPARISONS, found, strict=True)
        ]
    known = {variant: tuple(of_one) for variant, of_one in pairs.items()}
    added = dict.fromkeys(name.variant for name in after.scored if name.variant not in pairs)
    return Verdict(tuple(checks), known, falls, tuple(added))


def _said_missing(
    missing: Sequence[ResultName], there: int, errors: Mapping[ResultName, str]
) -> str:
    why = next((errors[name] for name in missing if name in errors), "not computed")
    return f"{len(missing)} of {len(missing) + there} results are missing: {why}"


def _exact_problems(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield a line for each field that moved, with the sample where it moved most."""
    for field in SAME:
        moved = [p for p in pairs if getattr(p.before, field) != getattr(p.after, field)]
        if moved:
            yield _said(field, moved, pairs, attrgetter(field))
    for field in RATIOS:
        moved = [p for p in pairs if _distance(p, field) > _allowed(p)]
        if moved:
            farthest = sorted(moved, key=lambda pair: -_distance(pair, field))
            yield _said(field, farthest, pairs, attrgetter(field))
    moved = [p for p in pairs if _farthest_layer(p)[0] > _allowed(p)]
    if moved:
        _, layer = _farthest_layer(moved[0])
        yield _said(f"kept_tokens of layer {layer}", moved, pairs, partial(_kept, layer))


def _allowed(pair: Pair) -> float:
    searched = "evaluations" in pair.before.facts or "evaluations" in pair.after.facts
    return SEARCHED if searched else ROUNDING


def _distance(pair: Pair, field: str) -> float:
    before, after = (float(getattr(one, field) or 0.0) for one in (pair.before, pair.after))
    return abs(after - before)


def _farthest_layer(pair: Pair) -> tuple[float, int]:
    """The largest change of a layer's kept tokens, as a share of the prompt, and the layer."""
    layers = range(max(len(pair.before.kept_tokens), len(pair.after.kept_tokens)))
    apart = ((abs(_kept(i, pair.before) - _kept(i, pair.after)), i) for i in layers)
    tokens, layer = max(apart, key=lambda found: found[0], default=(0.0, 0))
    return tokens / pair.before.prefill_tokens, layer


def _kept(layer: int, record: Record) -> float:
    """Tokens that a layer kept; a layer that is not there kept none."""
    return record.kept_tokens[layer] if layer < len(record.kept_tokens) else 0.0


def _said(
    what: str, moved: Sequence[Pair], pairs: Sequence[Pair], value: Callable[[Record], object]
) -> str:
    first = moved[0]
    before, after = (_short(value(record)) for record in (first.before, first.after))
    # Ids of LongBench records are long.
    return (
        f"{what} differs on {len(moved)} of {len(pairs)} samples, such as {first.before.task}"
        f" {first.before.sample[:12]}: {before} before, {after} after"
    )


def _short(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 80 else text[:80] + " ..."


def _token_problems(pairs: Sequence[Pair], tolerance: Tolerance) -> Iterator[str]:
    changed = sum(not pair.same_prediction for pair in pairs)
    allowed = int(tolerance.changed * len(pairs))
    if changed > allowed:
        yield f"{changed} of {len(pairs)} predictions differ, {allowed} are tolerated"


def _rescored(pairs: Sequence[Pair]) -> Iterator[str]:
    """Yield a line where equal texts have unequal scores: the metric changed, not the model."""
    moved = [p for p in pairs if p.same_prediction and _other_scores(p.before, p.after)]
    if moved:
        yield _said("the score of the same text", moved, pairs, attrgetter("score"))


def _other_scores(one: Record, other: Record) -> bool:
    if one.scores.keys() != other.scores.keys():
        return True
    return any(abs(one.scores[metric] - other.scores[metric]) > ROUNDING for metric in one.scores)


def _falls(pairs: Mapping[str, Sequence[Pair]]) -> dict[str, Fall]:
    """Each variant's change of score, its suites the strata; nothing where no sample is shared."""
    by_suite: dict[str, dict[str, list[Pair]]] = {}
    for variant, of_one in pairs.items():
        for pair in of_one:
            by_suite.setdefault(variant, {}).setdefault(pair.before.suite, []).append(pair)
    before, after = (
        {
            variant: [_scores(found, side) for found in suites.values()]
            for variant, suites in by_suite.items()
        }
        for side in ("before", "after")
    )
    found = [paired_difference(after[variant], before[variant]) for variant in by_suite]
    corrected = holm([difference.p for difference in found])
    return {
        variant: Fall(mean_of_means(before[variant]), difference, p)
        for variant, difference, p in zip(by_suite, found, corrected, strict=True)
    }


def _scores(pairs: Sequence[Pair], side: str) -> list[float]:
    """Scores x100 of one run."""
    return [100 * (getattr(pair, side).score or 0.0) for pair in pairs]


def _falling(fall: Fall | None, tolerance: Tolerance) -> Iterator[str]:
    if fall is None or fall.difference.interval is None:
        return
    mean, interval = fall.difference.mean, fall.difference.interval
    if mean < -tolerance.margin and interval.high < 0 and fall.corrected_p < tolerance.level:
        yield (
            f"the mean score falls from {fall.before:.2f} by {-mean:.2f}"
            f" ({interval.low:+.2f} to {interval.high:+.2f}, p {fall.corrected_p:.3f})"
        )
