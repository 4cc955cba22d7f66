"""The chat template that a tokenizer brings along."""

from __future__ import annotations

from textwrap import shorten
from typing import Any

from kvbench.base.errors import UserError

MARK = "kvbench-user-text"
"""Stands for the user's text when a chat template is measured."""


def chat_around(tokenizer: Any) -> tuple[str, str]:
    """What the tokenizer's chat template puts before and after one user turn, the cue included."""
    before, _, after = in_chat(MARK, tokenizer).partition(MARK)
    return before, after


def in_chat(text: str, tokenizer: Any) -> str:
    """Return a text as one user turn of the tokenizer's chat template, with the answer's cue.

    Raises:
        UserError: the template fails.
    """
    turn = [{"role": "user", "content": text}]
    try:
        return str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # the template is a program of the model's author, in a sandbox
        reason = shorten(f"{type(error).__name__}: {error}", 200)
        raise UserError(
            f"the model's chat template fails ({reason}): set protocol.chat_template=none"
        ) from error


def encoded_ids(tokenizer: Any, text: str, special_tokens: bool) -> list[int]:
    """Tokenize a text, with special tokens unless it brings its beginning of sequence along."""
    bos = tokenizer.bos_token
    begins = bos is not None and text.startswith(bos)
    encoding = tokenizer(text, add_special_tokens=special_tokens and not begins, verbose=False)
    return list(encoding["input_ids"])
