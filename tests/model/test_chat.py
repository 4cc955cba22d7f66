"""What is settled of a chat template before anybody applies it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvbench.base.errors import UserError
from kvbench.model.chat import chat_around, in_chat, settle_template
from kvbench.model.loading import load_tokenizer
from kvbench.model.spec import ModelSpec
from support.cli import one_line
from support.families import saved
from support.tokenizers import THINKING, TODAY, byte_bpe


def test_thinking_is_turned_off_for_all_who_apply_the_template() -> None:
    tokenizer = byte_bpe(THINKING)
    assert in_chat("hi", tokenizer) == "<|user|>hi<|end|><|assistant|>\n"
    settle_template(tokenizer, {"enable_thinking": False})
    assert in_chat("hi", tokenizer) == "<|user|>hi<|end|><|assistant|>\n<think>\n\n</think>\n\n"
    assert chat_around(tokenizer)[1].endswith("</think>\n\n")
    stated = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert stated == in_chat("hi", tokenizer)


def test_a_variable_may_be_a_text_with_quotes() -> None:
    tokenizer = byte_bpe("{{ voice }}: {{ messages[0]['content'] }}")
    settle_template(tokenizer, {"voice": 'a "calm" {{ one }}\n注'})
    assert in_chat("hi", tokenizer) == 'a "calm" {{ one }}\n注: hi'


def test_a_template_that_tells_the_date_tells_the_same_every_day() -> None:
    tokenizer = byte_bpe(TODAY)
    settle_template(tokenizer, {})
    assert in_chat("hi", tokenizer) == "26 Jul 2024|26 July 2024|2024-07-26 hi"


def test_one_of_several_templates_suffices() -> None:
    tokenizer = byte_bpe()
    tokenizer.chat_template = {"default": THINKING, "tool_use": "{{ messages[0]['content'] }}"}
    settle_template(tokenizer, {"enable_thinking": False})
    assert "</think>" in in_chat("hi", tokenizer)


@pytest.mark.parametrize("template", [THINKING, None])
def test_a_variable_that_the_template_does_not_read_is_refused(template: str | None) -> None:
    with pytest.raises(UserError, match="does not read enable_thoughts") as error:
        settle_template(byte_bpe(template), {"enable_thoughts": False})
    assert "model.chat_template_kwargs" in one_line(error)


def test_a_loaded_tokenizer_has_what_its_spec_says(tmp_path: Path) -> None:
    saved(tmp_path)
    byte_bpe(THINKING).save_pretrained(tmp_path)
    off = ModelSpec("m", str(tmp_path), chat_template_kwargs={"enable_thinking": False})
    assert "</think>" in in_chat("hi", load_tokenizer(off))
    assert "</think>" not in in_chat("hi", load_tokenizer(ModelSpec("m", str(tmp_path))))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"enable thinking": False}, "enable thinking"),
        ({"tools": [1]}, "chat_template_kwargs.tools"),
        ("enable_thinking", "is not a node"),
        ({"a": None}, "chat_template_kwargs.a=None"),
    ],
)
def test_what_is_no_variable_is_refused(given: object, said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        ModelSpec("m", "random", chat_template_kwargs=given)  # type: ignore[arg-type]
    one_line(error)
