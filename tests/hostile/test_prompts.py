"""Prompts nobody meant to send: through `prompt.render`, and through whole runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvbench.api import run_words
from kvbench.model.random import RandomShape, byte_tokenizer, random_llama
from kvbench.records.reader import distinct, read_shards
from kvbench.records.record import Record
from kvbench.tasks.longbench import LongBench
from kvbench.tasks.prompt import PromptRules, prompt_text, render
from kvbench.tasks.task import Sample
from support.cases import slow

(HOTPOTQA,) = LongBench(["hotpotqa"]).tasks()

TEXTS = {
    "empty": "",
    "one token": "a",
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈" * 9,
    "right-to-left": "שלום \u202eעולם\u202c مرحبا " * 8,
    "CRLF": "one\r\ntwo\r\rthree\n\n" * 8,
    "null characters": "\0a\0\0b\0" * 20,
    "stop words": "the of and a to in is it " * 12,
    "one character": "x" * 300,
    "template marks": "<s>[user] {context}{input}</s> %s {0} <|im_end|>" * 4,
    "long": "Dog days. " * 10_000,
}

RULES = [PromptRules(t, c) for t in ("middle", "none") for c in ("official", "none", "llama2")]

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=120)


@settings(max_examples=60, deadline=None)
@given(texts, texts, st.sampled_from(RULES), st.none() | st.integers(2, 300))
@example("", "", RULES[0], 2)
@example(TEXTS["long"], "?", RULES[0], 100)
@example(TEXTS["long"], "", RULES[3], None)
def test_any_text_becomes_tokens_of_known_parts(
    context: str, question: str, rules: PromptRules, most: int | None
) -> None:
    tokenizer = byte_tokenizer(10**6)
    sample = Sample(HOTPOTQA, "s", context, question, ("a",), {"length": 1})
    prompt = render(sample, tokenizer, rules, max_input_tokens=most, context_limit=10**6)
    beginnings = sum(token == tokenizer.bos_token_id for token in prompt.ids)
    asked = sum(text.count("<s>") for text in (context, question))
    assert 0 <= prompt.context_end <= len(prompt.ids)
    assert prompt.ids[0] == tokenizer.bos_token_id
    assert beginnings <= 1 + asked
    if prompt.tokens_cut == 0:
        text = tokenizer.decode(prompt.ids, skip_special_tokens=True)
        assert prompt_text(sample).replace("<s>", "").replace("</s>", "").strip() in text
    else:
        assert rules.truncation == "middle" and most is not None


def records_of(folder: Path) -> list[Record]:
    return [record for _, record in distinct(read_shards(folder))]


def write_data(folder: Path, texts: dict[str, str]) -> Path:
    folder.mkdir()
    lines = [
        {
            "_id": name,
            "input": "Who?",
            "context": text,
            "answers": ["nobody"],
            "all_classes": None,
            "length": len(text.split()),
            "dataset": "hotpotqa",
            "language": "en",
        }
        for name, text in texts.items()
    ]
    text = "\n".join(json.dumps(line) for line in lines)
    (folder / "hotpotqa.jsonl").write_text(text + "\n", encoding="utf-8")
    return folder


def run(data: Path, out: Path, *words: str) -> list[Record]:
    small = ["model=tiny-random", "model.device=cpu", "model.context=1024", "task=hotpotqa"]
    run_words([*small, f"data={data}", f"out={out}", *words])
    return records_of(out)


def test_every_hard_text_is_a_result_of_every_method(tmp_path: Path) -> None:
    methods = "snapkv,spindlekv,h2o,kvzip"
    found = run(write_data(tmp_path / "data", TEXTS), tmp_path / "run", f"method={methods}")
    assert len(found) == len(TEXTS) * 5
    assert {record.sample for record in found} == set(TEXTS)
    assert [record.error for record in found if record.error] == []


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 2), slow((1, 5, 5, 6)), (2, 6, 3, 10), slow((1, 7, 1, 8))], ids=str
)
def test_odd_shapes_of_models_run(tmp_path: Path, shape: tuple[int, int, int, int]) -> None:
    names = ("layers", "query_heads", "kv_heads", "head_dim")
    words = [f"model.random.{name}={value}" for name, value in zip(names, shape, strict=True)]
    data = write_data(tmp_path / "data", {"a": "Dog days. " * 9})
    found = run(data, tmp_path / "run", "method=snapkv,spindlekv,h2o,pyramidkv,adakv", *words)
    assert [record.error for record in found if record.error] == []
    assert len(found) == 6


def test_budgets_of_the_prompts_length_one_more_and_one_less(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data", {"a": "Dog days. " * 4})
    (full,) = run(data, tmp_path / "full", "method=fullkv")
    tokens = full.prompt_tokens
    budgets = f"budget={tokens - 1},{tokens},{tokens + 1},1"
    found = run(data, tmp_path / "run", "method=snapkv,streamingllm,h2o", budgets)
    assert len(found) == 1 + 3 * 4
    for record in found:
        assert record.error is None
        assert record.kept_ratio is not None
        if record.budget == tokens - 1:
            assert 1 - 2 / tokens < record.kept_ratio < 1
        elif record.budget_unit == "tokens" and record.budget > 1:
            assert (record.kept_ratio, record.prediction) == (1.0, full.prediction)


def test_a_window_longer_than_the_prompt_is_the_prompt(tmp_path: Path) -> None:
    data = write_data(tmp_path / "data", {"a": "Dog days."})
    found = run(data, tmp_path / "run", "method=snapkv,pyramidkv", "method.window=4096")
    assert [record.error for record in found if record.error] == []


@pytest.fixture
def poisoned(tmp_path: Path) -> Path:
    """A model folder whose embedding of the byte `Z` is not a number."""
    network = random_llama(RandomShape(context=512))
    tokenizer: Any = byte_tokenizer(512)
    with torch.no_grad():
        network.model.embed_tokens.weight[tokenizer.convert_tokens_to_ids("Z")] = float("nan")
    network.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_prompt_without_finite_keys_fails_alone_and_names_the_layer(
    tmp_path: Path, poisoned: Path
) -> None:
    data = write_data(tmp_path / "data", {"good": "days", "bad": "Zays", "better": "ways"})
    words = ["model=custom", f"model.path={poisoned}", "model.name=poisoned", "model.device=cpu"]
    (job,) = run_words([*words, "task=hotpotqa", f"data={data}", f"out={tmp_path / 'run'}"])
    assert job.value.failed == 2, "FullKV and the method, of one sample of three"
    errors = {r.sample: r.error for r in records_of(tmp_path / "run")}
    assert errors["good"] is None and errors["better"] is None
    assert "keys of layer 0 hold NaN or infinity" in str(errors["bad"])
