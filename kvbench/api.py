"""The public surface of kvbench: evaluate methods, read runs, compress a cache in three lines.

Library calls raise `UserError` where the caller got something wrong; none prints, exits or reads
the command line. The command line is made of the same calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from numbers import Integral
from operator import or_
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from kvbench.analysis.run import analyze
from kvbench.base.checks import check_whole_number
from kvbench.base.errors import UserError
from kvbench.cache.ledger import Ledger, ledger
from kvbench.cache.store import Compressed
from kvbench.classifier.trained import ORACLE, TASK_TYPES
from kvbench.classifier.trained import load as load_classifier
from kvbench.compress.budget import Budget
from kvbench.compress.method import Method
from kvbench.config import sweeper
from kvbench.config.catalog import check_choice, choices
from kvbench.config.objects import built
from kvbench.config.planning import variant_of_method, word_of, words_of_method
from kvbench.config.sweeper import JobResult, plan_of_job, plans_of_words, quoted_list
from kvbench.config.words import quoted
from kvbench.decode.greedy import Stop, decode
from kvbench.model.chat import chat_around, encoded_ids
from kvbench.model.loading import LoadedModel, load
from kvbench.model.loading import wrap as wrap_network
from kvbench.model.spec import ModelSpec
from kvbench.plan.names import BASELINE
from kvbench.plan.plan import Plan
from kvbench.plan.variant import Variant
from kvbench.prefill.capture import capture
from kvbench.prefill.needs import Needs
from kvbench.prefill.pruning import PruningSchedule
from kvbench.prefill.state import Prefill
from kvbench.records.summary import Summary
from kvbench.report.run import Run
from kvbench.run.caches import fitted_cache, schedule_of
from kvbench.run.forecast import Forecast, forecast
from kvbench.run.loop import execute


def evaluate(
    model: str = "smollm2-135m",
    tasks: str | Sequence[str] = "longbench",
    methods: str | Method | Sequence[str | Method] = "spindlekv",
    budgets: float | Sequence[float] = 0.2,
    *,
    data: str | Path = "sample",
    protocol: str = "official",
    limit: int | None = None,
    out: str | Path | None = None,
    baseline: bool = True,
    words: Sequence[str] = (),
    progress: bool = True,
) -> Run:
    """Evaluate methods at budgets on tasks, as `kvbench run` does; what is known stays.

    Args:
        model: a name of `kvbench list models`, a hub id, a folder or a .gguf file.
        tasks: names of `kvbench list tasks`.
        methods: names of `kvbench list methods`, or methods themselves.
        budgets: what is kept: fractions of the native cache, or whole numbers of tokens.
        data: `sample`, `hub`, or a folder or zip of `<task>.jsonl`.
        protocol: `official` or `paper`.
        limit: first records of each task; None: all.
        out: run folder; None: as `kvbench run` names it.
        baseline: whether FullKV runs beside.
        words: further words of `kvbench run`, such as `protocol.max_new_tokens=64`.
        progress: whether a display on stderr shows how far it is.

    Returns:
        The run, whose `summary` says what was computed now.

    Raises:
        UserError: an argument is wrong, or data, model or folder cannot be used.
    """
    plans = plans_of(
        model, tasks, methods, budgets, data, protocol, limit, out, baseline=baseline, words=words
    )
    if len(folders := dict.fromkeys(str(plan.out) for plan in plans)) > 1:
        raise UserError(f"tasks go to {' and '.join(folders)}: give out=FOLDER, or a call for each")
    done = [execute(plan, progress=progress) for plan in plans]
    return Run(plans[-1].out, sum(done[1:], start=done[0]))


def plans_of(
    model: str,
    tasks: str | Sequence[str],
    methods: str | Method | Sequence[str | Method],
    budgets: float | Sequence[float],
    data: str | Path,
    protocol: str,
    limit: int | None,
    out: str | Path | None,
    *,
    baseline: bool,
    words: Sequence[str],
) -> list[Plan]:
    """Return the plans of an evaluation, one for each of `tasks`; arguments as of `evaluate`.

    Raises:
        UserError: an argument is wrong.
    """
    wanted = _listed(methods)
    kept: list[float] = list(_listed(budgets))
    for what, values in (("methods", wanted), ("budgets", kept), ("tasks", _listed(tasks))):
        if not values:
            raise UserError(f"{what}=[] names none: give at least one")
    rows, foreign = [], []
    for method in wanted:
        _check_method(method)
        spelled = [f"method={method}"] if isinstance(method, str) else words_of_method(method)
        if spelled is None:
            foreign += [variant_of_method(method, budget) for budget in kept]
        else:
            rows += [[*spelled, f"budget={_budget_word(budget)}"] for budget in kept]
    lists = ",".join(quoted_list(row) for row in rows or [[f"method={BASELINE}"]])
    plans = plans_of_words(
        [
            f"model.path={quoted(str(model))}" if _is_place(model) else f"model={model}",
            f"task={','.join(_listed(tasks))}",
            f"protocol={protocol}",
            f"data={quoted(str(data))}",
            f"limit={'null' if limit is None else limit}",
            f"out={'null' if out is None else quoted(str(out))}",
            f"baseline={str(baseline).lower()}",
            *words,
            f"variants=[{lists}]",
        ]
    )
    if not foreign:
        return plans
    own = tuple(v for v in plans[0].variants if rows or (baseline and v.is_baseline))
    return [replace(plan, variants=(*own, *foreign)) for plan in plans]


def _is_place(model: str) -> bool:
    """Whether a model is named by where it is: a path, a hub id, a package; not by a choice."""
    return "/" in model or ":" in model or model.endswith(".gguf") or Path(model).is_dir()


def _check_method(method: object) -> None:
    """Refuse what is neither a method nor the name of one."""
    if not isinstance(method, (str, Method)):
        called = f"{method.__name__}()" if isinstance(method, type) else "a name or a Method"
        raise UserError(f"methods: {method!r} is not a method: give {called}")


def _budget_word(value: object) -> str:
    """A budget as the command line writes it, whatever kind of number it is."""
    Budget.parse(value)
    return repr(int(value)) if isinstance(value, Integral) else repr(float(value))  # type: ignore[arg-type]


def _listed(values: Any) -> list[Any]:
    several = isinstance(values, Iterable) and not isinstance(values, (str, type))
    return list(values) if several else [values]


@dataclass(frozen=True, eq=False)
class Model:
    """A model ready to prefill contexts through kvbench's attention."""

    loaded: LoadedModel
    """What the rest of kvbench works with."""

    @property
    def network(self) -> Any:
        """The transformers model."""
        return self.loaded.network

    @property
    def tokenizer(self) -> Any:
        """Its tokenizer."""
        return self.loaded.tokenizer

    def prefill(
        self,
        context: str,
        *,
        chat: bool = True,
        methods: Sequence[str | Method] = (),
        task_type: str | None = None,
    ) -> Context:
        """Prefill a context once, for any number of methods, budgets and questions.

        Args:
            context: text.
            chat: put the tokenizer's chat template around context and question, where it has one.
            methods: names or methods whose needs are captured at once; one that needs more than
                was captured has the context prefilled again.
            task_type: `localization` or `aggregation`, for methods that ask an oracle.

        Raises:
            UserError: the context does not fit the model, or a method is unknown.
        """
        before, after = "", ""
        if chat and self.tokenizer.chat_template:
            before, after = chat_around(self.tokenizer)
        ids = encoded_ids(self.tokenizer, before + context, special_tokens=True)
        if not ids:
            raise UserError("context='' has no tokens: give some text")
        self.loaded.check_length(len(ids))
        asked = [variant_of(method, 1.0).method.needs for method in methods]
        prompt = Context(self.loaded, tuple(ids), context, after, task_type)
        if asked:
            prompt.captured(reduce(or_, asked), None)
        return prompt


@dataclass(frozen=True, eq=False)
class Context:
    """A prefilled context, from which caches are compressed."""

    model: LoadedModel
    ids: tuple[int, ...]
    """Token ids that are compressed."""
    text: str
    closing: str
    """What follows a question: the end of the chat template."""
    task_type: str | None
    _kept: dict[PruningSchedule | None, tuple[Needs, Prefill]] = field(default_factory=dict)

    def compress(self, method: str | Method, budget: float, **fields: Any) -> Cache:
        """Compress the context's cache.

        Args:
            method: a name of `kvbench.list_methods()`, or a method.
            budget: a fraction of the native cache's bytes, or a whole number of tokens.
            fields: of a named method, such as `window=16`.

        Raises:
            UserError: the method, a field or the budget is wrong.
        """
        variant = variant_of(method, budget, fields)
        schedule = schedule_of(self.model, len(self.ids), variant)
        needs = variant.method.needs
        if variant.budget.keeps_whole(len(self.ids)):
            needs = Needs()
        prefill = replace(
            self.captured(needs if schedule is None else Needs(), schedule),
            task_types=self._task_types(needs),
        )
        cache = fitted_cache(variant, prefill)
        with torch.inference_mode():
            weights = ledger(prefill, cache)
        return Cache(self, variant, cache, weights)

    def captured(self, needs: Needs, schedule: PruningSchedule | None) -> Prefill:
        """Return the prefill of a schedule that holds at least `needs`, made where it lacks one."""
        needs = replace(needs, classifiers=frozenset())
        known = self._kept.get(schedule)
        if known is None or known[0] | needs != known[0]:
            wanted = needs if known is None else needs | known[0]
            made = capture(self.model, torch.tensor(self.ids), wanted, schedule)
            self._kept[schedule] = known = (wanted, made)
        return known[1]

    def _task_types(self, needs: Needs) -> dict[str, str]:
        found = {}
        for name in needs.classifiers:
            if name != ORACLE:
                found[name] = load_classifier(name).task_type(self.text)
            elif self.task_type in TASK_TYPES:
                found[name] = str(self.task_type)
            else:
                raise UserError(
                    f"task_type={self.task_type!r}: the method asks what the task is, give"
                    f" prefill(..., task_type=...) one of {', '.join(TASK_TYPES)}"
                )
        return found


@dataclass(frozen=True, eq=False)
class Cache:
    """A compressed cache; generating leaves it as it is, so it serves any number of questions."""

    context: Context
    variant: Variant
    """The method and budget that made it."""
    stored: Compressed
    """What each layer holds."""
    ledger: Ledger
    """What it weighs."""

    @property
    def ratio_bytes(self) -> float:
        """Bytes of every tensor held / bytes of the native full cache of the same tokens."""
        return self.ledger.ratio_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor held."""
        return self.ledger.cache_bytes

    def generate(self, question: str, max_new_tokens: int = 64) -> str:
        """Feed a question behind the compressed context and answer it greedily.

        Args:
            question: text; not empty unless a chat template follows it.
            max_new_tokens: tokens generated at most; an end-of-sequence token ends it earlier.

        Raises:
            UserError: there is nothing to feed, or all of it does not fit the model.
        """
        model = self.context.model
        check_whole_number("max_new_tokens", max_new_tokens)
        text = question + self.context.closing
        feed = encoded_ids(model.tokenizer, text, special_tokens=False)
        if not feed:
            raise UserError("question='' feeds nothing to the model: ask something")
        model.check_length(len(self.context.ids), len(feed) + max_new_tokens)
        (generation,) = decode(
            model,
            [self.stored],
            len(self.context.ids),
            Stop(model.eos_ids, max_new_tokens),
            feed=feed,
        )
        return str(model.tokenizer.decode(generation.ids, skip_special_tokens=True))


def load_model(model: str = "smollm2-135m", **settings: Any) -> Model:
    """Load a model: a name of `kvbench list models`, a hub id, a folder or a .gguf file.

    Args:
        model: the name or place.
        settings: fields of the configuration's `model`, such as `dtype="bfloat16"`.

    Raises:
        UserError: it cannot be found, read, fitted on its device, or is not covered.
    """
    if _is_place(model):
        values: dict[str, Any] = {"name": "", "path": str(model)}
    else:
        check_choice("model", model)
        values = dict(next(c.config for c in choices("model") if c.name == model))
    return Model(load(built(ModelSpec, "model", {**values, **settings})))


def wrap(network: Any, tokenizer: Any, name: str = "model") -> Model:
    """Take a transformers model that is in memory; its attention becomes kvbench's.

    Args:
        network: a causal language model of a covered family.
        tokenizer: its fast tokenizer.
        name: what messages call it.

    Raises:
        UserError: its family is not covered, or the tokenizer is not a fast one.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(f"{type(tokenizer).__name__} is not a fast tokenizer: give one that is")
    spec = ModelSpec(name=name, path=name)
    return Model(wrap_network(network, tokenizer, spec, {"source": "memory", "path": spec.path}))


def variant_of(
    method: str | Method, budget: float, settings: Mapping[str, Any] | None = None
) -> Variant:
    """Return the variant that a method makes at a budget.

    Raises:
        UserError: the method, a field or the budget is wrong.
    """
    fields = settings or {}
    _check_method(method)
    if isinstance(method, str):
        words = [f"method={method}"]
        words += [f"method.{name}={word_of(value)}" for name, value in fields.items()]
    else:
        if fields:
            raise UserError(f"{', '.join(fields)}: fields are of a method's name, not of a method")
        spelled = words_of_method(method)
        if spelled is None:
            return variant_of_method(method, budget)
        words = spelled
    plan = plans_of_words([*words, f"budget={_budget_word(budget)}", "baseline=false"])[0]
    return plan.variants[0]


def run_words(words: Sequence[str]) -> list[JobResult]:
    """Run what words and Hydra's flags ask for, as `kvbench run` does, launchers included.

    Returns:
        Of each job its plan, and what `perform` returned.

    Raises:
        UserError: anything wrong with the words, or data, model or folder cannot be used.
    """
    return sweeper.run_words(words, run_job)


def run_job(config: DictConfig) -> Summary | list[Path]:
    """Run one job of `kvbench run`: all variants of its plan over all its samples.

    Returns:
        What was computed; of an analysis, the files written.
    """
    return perform(plan_of_job(config))


def forecast_words(words: Sequence[str]) -> list[JobResult]:
    """Say of each job that words ask for what it would do and take; nothing is recorded.

    Returns:
        Of each job its plan and a `Forecast`.

    Raises:
        UserError: anything wrong with the words, or data, model or folder cannot be used.
    """
    return sweeper.run_words(words, _forecast_job)


def _forecast_job(config: DictConfig) -> Forecast:
    plan = plan_of_job(config)
    if plan.analysis is not None:
        raise UserError(f"analysis={plan.analysis} has no --dry-run: leave it out")
    return forecast(plan)


def perform(plan: Plan, progress: bool = True) -> Summary | list[Path]:
    """Do what a plan says: compute its results, or measure what its analysis names.

    Raises:
        UserError: data, model or folder cannot be used.
    """
    if plan.analysis is None:
            return execute(plan, progress=progress)
    return analyze(plan, progress=progress)
