"""The chat template that a tokenizer brings along."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from textwrap import shorten
from typing import Any

from kvbench.base.bounded import bounded
from kvbench.base.errors import UserError

MARK = "kvbench-user-text"
"""Stands for the user's text when a chat template is measured."""

TEMPLATE_SECONDS = 10.0
"""A chat template that takes longer loops: the largest take milliseconds."""


_FIXED_DATE = (
    "{% macro strftime_now(format) %}{{ {'%d %B %Y': '26 July 2024', '%B %d, %Y': 'July 26, 2024',"
    " '%Y-%m-%d': '2024-07-26'}.get(format, '26 Jul 2024') }}{% endmacro %}"
)
"""The day that Llama-3.1's template names where no other is given."""


def settle_template(tokenizer: Any, variables: Mapping[str, Any]) -> None:
    """Write variables into the tokenizer's chat template, so that whoever applies it has them.

    A template that tells the model today's date tells a fixed one instead: prompts must not change
    from one day to the next.

    Raises:
        UserError: the template does not read one of the variables.
    """
    template = tokenizer.chat_template
    templates = template if isinstance(template, dict) else {"default": template or ""}
    for name in variables:
        if not any(re.search(rf"\b{name}\b", text) for text in templates.values()):
            raise UserError(
                f"the model's chat template does not read {name}: leave it out of"
                " model.chat_template_kwargs"
            )
    if not template:
        return
    head = "".join(f"{{% set {k} = {json.dumps(v)} %}}" for k, v in variables.items())
    settled = {
        name: head + (_FIXED_DATE if "strftime_now" in text else "") + text
        for name, text in templates.items()
    }
    tokenizer.chat_template = settled if isinstance(template, dict) else settled["default"]


def chat_around(tokenizer: Any) -> tuple[str, str]:
    """What the tokenizer's chat template puts before and after one user turn, the cue included."""
    before, _, after = in_chat(MARK, tokenizer).partition(MARK)
    return before, after


def in_chat(text: str, tokenizer: Any) -> str:
    """Return a text as one user turn of the tokenizer's chat template, with the answer's cue.

    Raises:
        UserError: the template fails, or does not end.
    """
    turn = [{"role": "user", "content": text}]

    def applied() -> str:
        return str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))

    try:
        return bounded(applied, TEMPLATE_SECONDS)
    except TimeoutError as error:
        raise UserError(
            f"the model's chat template is {error}: set protocol.chat_template=none"
        ) from error
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
