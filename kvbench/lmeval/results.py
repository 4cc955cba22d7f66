"""Answers on disk, and the records of lm-eval's scores, in kvbench's own store.

A shard of an lm-eval run holds two kinds of lines after its header: an `answer` as soon as it is
computed, and the `record` of each request once lm-eval has scored it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kvbench.base.hashing import fingerprint
from kvbench.cache.ledger import Ledger
from kvbench.lmeval.answers import Answer
from kvbench.lmeval.loading import LOCAL_DATA, asked_settings
from kvbench.lmeval.model import KVBench
from kvbench.lmeval.requests import Request, generation_request, greedy_settings
from kvbench.plan.names import LM_EVAL
from kvbench.plan.plan import Plan
from kvbench.plan.variant import Variant
from kvbench.records.header import DataFacts, ProtocolFacts, RunHeader, TaskFacts
from kvbench.records.reader import lines_of_kind
from kvbench.records.record import Record
from kvbench.records.writer import Writer
from kvbench.run.result import result_record, run_header


class Answers:
    """The answers that a run folder holds."""

    def __init__(self, out: Path, writer: Writer) -> None:
        """Read those of earlier runs; new ones go to `writer`."""
        self.known = {line["key"]: _answer(line) for line in lines_of_kind(out, "answer")}
        self._writer = writer

    def keep(self, key: str, answer: Answer) -> None:
        """Write one answer; it is on disk when this returns."""
        self._writer.append_line("answer", {"key": key, **asdict(answer)})


def _answer(line: Mapping[str, Any]) -> Answer:
    values = {name: line[name] for name in Answer.__dataclass_fields__ if name in line}
    return Answer(**{**values, "ledger": Ledger(**values["ledger"])})


def lm_eval_header(
    plan: Plan,
    loaded: Mapping[str, Any],
    settings: Any,
    limit: float | None,
    devices: Sequence[object],
) -> RunHeader:
    """Describe a run, in the form of `kvbench run`'s header.

    Args:
        plan: what is run.
        loaded: lm-eval's tasks.
        settings: lm-eval's EvaluatorConfig.
        limit: documents of each task, as lm-eval takes it.
        devices: where the model is, as torch names them.
    """
    tasks = loaded["tasks"]
    chat = settings.apply_chat_template
    further = {
        name: getattr(settings, name)
        for name in ("num_fewshot", "fewshot_as_multiturn", "system_instruction", "gen_kwargs")
    }
    data = DataFacts(
        setting=f"{LM_EVAL} {plan.lm_eval.data}",
        description="; ".join(f"{name}: {_source(task)}" for name, task in tasks.items()),
        hashes={name: _documents_hash(task) for name, task in tasks.items()},
    )
    return replace(
        run_header(plan, {}, data, devices),
        suite=LM_EVAL,
        protocol=ProtocolFacts(
            name=LM_EVAL,
            truncation="left",
            chat_template=chat if isinstance(chat, str) else "official" if chat else "none",
            stop="task",
            min_new_tokens="none",
            code_similarity="none",
            query_aware=True,
            first_token=plan.protocol.first_token,
            further={**further, "seed": settings.seed},
        ),
        tasks=tuple(_column(name, task, loaded, settings, limit) for name, task in tasks.items()),
    )


def _column(
    name: str, task: Any, loaded: Mapping[str, Any], settings: Any, limit: float | None
) -> TaskFacts:
    generates = task.OUTPUT_TYPE == "generate_until"
    asked = greedy_settings(asked_settings(task, settings), name) if generates else {}
    return TaskFacts(
        name=name,
        group=_group(name, loaded),
        samples=_sample_count(name, task, settings, limit),
        max_new_tokens=int(asked.get("max_gen_toks", 0)),
        one_token_answers=False,
    )


def _sample_count(name: str, task: Any, settings: Any, limit: float | None) -> int:
    """Documents of a task that this run scores."""
    documents = len(task.eval_docs)
    if settings.samples:
        return len(settings.samples.get(name) or range(documents))
    if limit is None:
        return documents
    return min(documents, math.ceil(documents * limit) if limit < 1 else int(limit))


def _group(name: str, loaded: Mapping[str, Any]) -> str:
    """The outermost of lm-eval's groups that holds the task, or the task itself."""
    parents = {child: group for group, found in loaded["group_map"].items() for child in found}
    while name in parents and parents[name] != LOCAL_DATA:
        name = parents[name]
    return name


def _source(task: Any) -> str:
    files = (task.config.dataset_kwargs or {}).get("data_files")
    if files:
        return "local files"
    return " ".join(str(part) for part in (task.DATASET_PATH, task.DATASET_NAME) if part)


def _documents_hash(task: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for document in task.eval_docs:
        digest.update(json.dumps(document, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def records(
    model: KVBench, variant: Variant, samples: Mapping[str, Any], header: RunHeader
) -> Iterator[Record]:
    """Yield the record of each request of one variant's evaluation.

    A document of several requests (the choices of a question) has one score; its first request's
    record holds it.

    Args:
        model: which answered.
        variant: whom it answered for.
        samples: task -> the samples that lm-eval logged, one a document and filter.
        header: of the run, for the tasks' groups.
    """
    groups = {task.name: task.group for task in header.tasks}
    for task, logged in samples.items():
        documents: dict[Any, list[Mapping[str, Any]]] = {}
        for sample in logged:
            documents.setdefault(sample["doc_id"], []).append(sample)
        names = _metrics(list(documents.values()))
        for document, by_filter in documents.items():
            scores = {name: _values(by_filter)[name] for name in names}
            first = by_filter[0]
            for i, arguments in enumerate(first["arguments"]):
                yield _record(
                    model,
                    variant,
                    _request(arguments),
                    task=task,
                    group=groups[task],
                    sample=f"{document}.{i}" if i else str(document),
                    scores={} if i else scores,
                    answers=_references(first["target"]),
                    document=first["doc_hash"],
                )


def _request(arguments: Sequence[Any]) -> Request:
    """The request of a logged sample's arguments: (context, continuation or settings)."""
    if isinstance(arguments[1], Mapping):
        return generation_request(arguments)
    return Request(arguments[0], arguments[1])


def _references(target: Any) -> list[str]:
    return [str(t) for t in target] if isinstance(target, list) else [str(target)]


def _values(by_filter: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Metric -> value of one document; `metric,filter` where a task has filters."""
    found = {}
    for sample in by_filter:
        for metric in sample["metrics"]:
            value = sample[metric]
            name = metric if sample["filter"] == "none" else f"{metric},{sample['filter']}"
            try:
                found[name] = float(value)
            except (TypeError, ValueError):
                continue  # what a corpus metric collects of a document is no score of its own
    return found


def _metrics(documents: Sequence[Sequence[Mapping[str, Any]]]) -> list[str]:
    """The metrics that are in [0, 1] on every document, in the task's order."""
    values = [_values(by_filter) for by_filter in documents]
    return [n for n in values[0] if all(0 <= found.get(n, math.nan) <= 1 for found in values)]


def _record(
    model: KVBench,
    variant: Variant,
    request: Request,
    *,
    task: str,
    group: str,
    sample: str,
    scores: Mapping[str, float],
    answers: list[str],
    document: str,
) -> Record:
    answer = model.answer(request, variant)
    assert answer is not None
    facts = dict(answer.facts)
    if request.continuation is not None:
        facts |= {
            "continuation": request.continuation,
            "log_likelihood": answer.log_likelihood,
            "is_greedy": answer.is_greedy,
        }
    return result_record(
        variant,
        answer.ledger,
        scores,
        tail_bytes=answer.tail_bytes,
        key=fingerprint([request.key(model.plan, variant), task, sample, document]),
        model=model.plan.model.name,
        suite=LM_EVAL,
        task=task,
        group=group,
        sample=sample,
        query_aware=True,
        prompt_tokens=answer.prompt_tokens,
        prefill_tokens=answer.prefill_tokens,
        tokens_cut=answer.tokens_cut,
        spans={},
        span_kept={},
        prediction=answer.text,
        generated_tokens=answer.generated_tokens,
        answers=answers,
        scored_fields={},
        facts=facts,
        decode_width=answer.width,
        capture_s=answer.capture_s,
        compress_s=answer.compress_s,
        decode_s=answer.answer_s,
        decode_bytes=answer.decode_bytes,
        reader=answer.reader,
        error=None,
    )
