"""The lines under a table: what is missing, and the protocol a number is worthless without."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from kvbench.plan.names import LM_EVAL
from kvbench.report.table.needle import is_needle, needle_notes, sized_suite
from kvbench.report.table.table import Row, Table

_LIBRARIES = ("kvbench", "torch", "transformers", "rouge", "jieba", "rapidfuzz")


def notes(table: Table) -> list[str]:
    """Return what a reader must know before comparing rows, most important first."""
    lines = []
    if table.headers[-1].data.is_sample_suite:
        lines.append("This is kvbench's own sample suite, NOT LongBench: compare its rows only.")
    lines += needle_notes(table) if is_needle(table) else [_samples_per_task(table)]
    lines += [f"{task} is {main}; other metrics follow." for task, main in _main_metrics(table)]
    lines += _missing(table)
    lines += table.code_notes()
    lines += [_failures(row) for row in table.rows if row.errors]
    lines += _past_context(table)
    lines += _kept_whole(table)
    one_token = [task.name for task in table.tasks if task.one_token_answers]
    first = table.headers[-1].protocol.first_token
    if one_token and first == "prefill":
        lines.append(
            f"Answers of one token come from the uncompressed prefill (first_token=prefill):"
            f" {', '.join(one_token)} cannot tell methods apart."
        )
    return lines


def _kept_whole(table: Table) -> list[str]:
    """Prompts that fit a budget in tokens, by budget: no method did anything to them."""
    lines = []
    rows = [row for row in table.rows if not row.is_baseline and row.budget.tokens is not None]
    for budget in dict.fromkeys(row.budget for row in rows):
        at = [row for row in rows if row.budget == budget]
        prompts = {(r.task, r.sample): r for row in at for r in row.records if r.native_bytes}
        whole = sum(r.cache_bytes == r.native_bytes for r in prompts.values())
        if whole:
            lines.append(
                f"{whole} of {len(prompts)} prompts fit {budget} tokens and were kept whole: they"
                " tell no methods apart."
            )
    return lines


def protocol_card(table: Table) -> list[str]:
    """Return the protocol, data and versions of a table, one fact group a line."""
    header = table.headers[-1]
    protocol, model, data = header.protocol, header.model, header.data
    generated = sorted({task.max_new_tokens for task in table.tasks})
    limit = protocol.max_input_tokens
    where = f"{limit} tokens" if limit else "the context"
    truncation = f"truncation {protocol.truncation} at {where}"
    if sized_suite(table):
        truncation = "prompts made to their length and never cut"
    hashes = json.dumps(_data_hashes(table), sort_keys=True)
    widths = sorted({r.decode_width for row in table.rows for r in row.records if r.decode_width})
    by_lm_eval = header.suite == LM_EVAL
    names = (*_LIBRARIES, *["lm_eval"] * by_lm_eval)
    libraries = [f"{name} {header.versions.get(name)}" for name in names]
    commits = dict.fromkeys(_commit(h.git) for h in table.headers)
    return [
        f"model {model.name}: {model.path}"
        + (f" at {model.revision[:12]}" if model.revision else "")
        + f", {model.dtype}",
        f"protocol {protocol.name}: {truncation},"
        f" chat template {protocol.chat_template}, greedy, stop {protocol.stop},"
        f" at least one token: {protocol.min_new_tokens},"
        f" at most {_span(generated)} generated tokens by task",
        f"query_aware {str(protocol.query_aware).lower()},"
        f" first_token {protocol.first_token},"
        f" code similarity {protocol.code_similarity},"
        f" decoded {_span(widths)} rows wide",
        *([f"lm-eval: {_lm_eval_settings(protocol.further)}"] if by_lm_eval else []),
        f"data: {data.description}"
        + (f" at {data.revision[:12]}" if data.revision else "")
        + f", hash {hashlib.blake2b(hashes.encode(), digest_size=6).hexdigest()}",
        f"versions: {', '.join(libraries)}; code {', '.join(commits)}",
    ]


def summary_of_missing(table: Table, row: Row) -> str:
    """What a row lacks, in a few words; empty where it is complete."""
    lacking = [(t, table.missing(row, t)) for t in table.tasks]
    lacking = [(t, n) for t, n in lacking if n]
    if len(lacking) == len(table.tasks) and not row.records:
        return "every sample"
    whole = [t.name for t, n in lacking if n == t.samples]
    parts = [f"{n} of {t.samples} in {t.name}" for t, n in lacking if n < t.samples]
    return "; ".join(([f"all of {', '.join(whole)}"] if whole else []) + parts)


def _main_metrics(table: Table) -> list[tuple[str, str]]:
    """Task and main metric, where the table has columns of others too."""
    if is_needle(table):
        return []
    return [(task, names[0]) for task, names in table.metrics.items() if len(names) > 1]


def _missing(table: Table) -> list[str]:
    """One line for the rows that lack the same, such as those of a run that still goes on."""
    alike: dict[str, list[str]] = {}
    for row in table.rows:
        lacking = summary_of_missing(table, row)
        if lacking:
            alike.setdefault(lacking, []).append(row.label)
    return [
        f"Incomplete: {_enumerated(labels)} {'lacks' if len(labels) == 1 else 'lack'} {lacking};"
        " means that need them are '-'."
        for lacking, labels in alike.items()
    ]


def _failures(row: Row) -> str:
    first = row.errors[0]
    return (
        f"{row.label}: {len(row.errors)} failed, first {first.task} {first.sample}: {first.error}"
    )


def _past_context(table: Table) -> list[str]:
    """One line for the rows whose method fed as many samples past the model's context."""
    alike: dict[str, list[str]] = {}
    for row in table.rows:
        past = [n for record in row.records if (n := record.facts.get("past_context"))]
        if past:
            of_samples = f"{len(past)} of {len(row.records)} samples, {max(past)} positions at most"
            alike.setdefault(of_samples, []).append(row.label)
    return [
        f"{_enumerated(labels)}: the context was repeated past the model's own in {of_samples}."
        for of_samples, labels in alike.items()
    ]


def _enumerated(labels: list[str]) -> str:
    return (
        ", ".join(labels)
        if len(labels) <= 4
        else f"{', '.join(labels[:3])} and {len(labels) - 3} more"
    )


def _samples_per_task(table: Table) -> str:
    counts = {task.samples for task in table.tasks}
    if len(counts) == 1:
        return f"n = {counts.pop()} per task; scores x100; AVG is the plain mean of the tasks."
    each = ", ".join(f"{task.name} {task.samples}" for task in table.tasks)
    return f"n: {each}; scores x100; AVG is the plain mean of the tasks."


def _data_hashes(table: Table) -> dict[str, str]:
    hashes: dict[str, str] = {}
    for header in table.headers:
        hashes |= header.data.hashes
    return hashes


def _lm_eval_settings(further: Mapping[str, Any]) -> str:
    """The flags of lm-eval that change a prompt or an answer; a null few-shot is the task's own."""
    shots = further.get("num_fewshot")
    said = [f"few-shot {'as each task says' if shots is None else shots}"]
    for name in ("fewshot_as_multiturn", "system_instruction", "gen_kwargs", "seed"):
        if further.get(name):
            said.append(f"{name} {json.dumps(further[name], ensure_ascii=False)}")
    return ", ".join(said)


def _span(values: list[int]) -> str:
    if not values:
        return "?"
    return str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"


def _commit(git: Mapping[str, Any]) -> str:
    if not git.get("commit"):
        return "of an installed package"
    return str(git["commit"])[:9] + ("+changes" if git["dirty"] else "")
