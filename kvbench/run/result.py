"""What is written of a run: the header of its shards, and the record of each result."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from kvbench.base import provenance
from kvbench.cache.ledger import Ledger
from kvbench.plan.plan import Plan
from kvbench.plan.variant import Variant
from kvbench.records.header import (
    DataFacts,
    ModelFacts,
    ProtocolFacts,
    RunHeader,
    TaskFacts,
    VariantFacts,
)
from kvbench.records.record import Record, now


def run_header(
    plan: Plan, expected: Mapping[str, int], data: DataFacts, devices: Sequence[object] = ()
) -> RunHeader:
    """Describe a run: the first line of each of its shards.

    Args:
        plan: what is run.
        expected: task name -> samples that the run will score.
        data: what they are made of.
        devices: where the model is, as torch names them.
    """
    return RunHeader(
        run=secrets.token_hex(6),
        started=now(),
        suite=plan.suite_choice,
        model=ModelFacts(name=plan.model.name, **plan.model_identity),
        data=data,
        protocol=ProtocolFacts(**asdict(plan.protocol)),
        variants=tuple(
            VariantFacts(v.label, v.choice, v.series, v.budget, v.is_baseline, v.config)
            for v in plan.variants
        ),
        tasks=tuple(
            TaskFacts(
                name=task.name,
                group=task.group,
                samples=expected[task.name],
                max_new_tokens=task.max_new_tokens,
                one_token_answers=task.one_token_answers,
            )
            for task in plan.tasks
            if task.name in expected
        ),
        stated=plan.stated,
        versions=provenance.versions(),
        git=provenance.git_state(),
        machine=provenance.machine(devices),
    )


def result_record(
    variant: Variant,
    ledger: Ledger | None,
    scores: Mapping[str, float],
    *,
    tail_bytes: int | None = None,
    **known: Any,
) -> Record:
    """Put what is known of one result into a record, made now.

    Args:
        variant: whose result it is.
        ledger: what its cache weighed; None where none was made.
        scores: metric -> value, the main one first.
        tail_bytes: bytes of what followed compression; None where nothing was generated.
        known: the fields of `Record` that these do not give.
    """
    measured = asdict(ledger) if ledger is not None else dict.fromkeys(_LEDGER_FIELDS)
    lists = {name: list(measured[name] or ()) for name in ("r1", "r2", "kept_tokens")}
    parts = dict(measured["bytes_by_part"] or {})
    if tail_bytes is not None:
        parts["tail"] = tail_bytes
    return Record(
        **{**measured, **lists, "bytes_by_part": parts, **known},
        variant=variant.label,
        method=variant.choice,
        method_config=dict(variant.config),
        budget=variant.budget.value,
        budget_unit=variant.budget.unit,
        metric=next(iter(scores), None),
        score=next(iter(scores.values()), None),
        scores=dict(scores),
        finished=now(),
        code=variant.code,
    )


_LEDGER_FIELDS = tuple(field.name for field in fields(Ledger))
