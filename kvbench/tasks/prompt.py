"""From a sample to token ids: template, middle truncation, chat template, end of the context.

Follows THUDM/LongBench `LongBench/pred.py` (chat_template `official`) and KVCache-Factory
`run_longbench.py` (`llama2` and `none`). Knows nothing of models, methods or metrics.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kvbench.base.errors import UserError
from kvbench.model.chat import MARK, chat_around, in_chat
from kvbench.tasks.task import Sample, Task

TRUNCATIONS = ("middle", "none")
CHAT_TEMPLATES = ("official", "none", "llama2")


@dataclass(frozen=True)
class PromptRules:
    """What a protocol profile says about prompts."""

    truncation: str = "middle"
    """`middle`: of a prompt that is too long, the first and the last half of the tokens stay;
    `none`: it is an error."""
    chat_template: str = "official"
    """`official`: the tokenizer's own, put around the truncated prompt, on tasks that take one.
    `llama2`: `[INST] {prompt} [/INST]`, put around it before truncation, on every task.
    `none`: never one."""

    def __post_init__(self) -> None:
        """Refuse values that no profile has."""
        for name, legal in (("truncation", TRUNCATIONS), ("chat_template", CHAT_TEMPLATES)):
            value = getattr(self, name)
            if value not in legal:
                raise UserError(f"{name} {value!r} is unknown: give one of {', '.join(legal)}")


@dataclass(frozen=True)
class Prompt:
    """What the model reads."""

    ids: tuple[int, ...]
    """Token ids, special tokens included; never two beginnings of sequence."""
    context_end: int
    """Tokens [0, context_end) are what precedes the question: chat and template prefix, context.
    A token that spans the border belongs to the question."""
    tokens_cut: int
    """Tokens that middle truncation took out of the prompt, 0 without."""
    text_hash: str
    """Blake2b of the text that was tokenized, 32 hex digits."""
    spans: Mapping[str, tuple[int, int]]
    """Name -> tokens [start, end) that hold any character of the sample's span of that name."""
    chat_template: str
    """What was put around the prompt: `official`, `llama2` or `none`."""
    profile: PromptRules

    def __len__(self) -> int:
        """Tokens."""
        return len(self.ids)


@dataclass(frozen=True)
class _Text:
    """A prompt as text; its first `border` characters precede the question; spans are of it."""

    text: str
    border: int
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def moved(self, text: str, characters: int, border: int | None = None) -> _Text:
        """This prompt inside another text, which it begins `characters` further on."""
        spans = {name: (a + characters, b + characters) for name, (a, b) in self.spans.items()}
        return _Text(text, self.border + characters if border is None else border, spans)


@dataclass(frozen=True)
class _Tokens:
    """Token ids and, for each, its characters in the text ([0, 0) for added specials)."""

    ids: list[int]
    starts: list[int]
    ends: list[int]

    def before(self, border: int) -> int:
        """Count the leading tokens that end at or before character `border`."""
        return next((i for i, end in enumerate(self.ends) if end > border), len(self.ids))

    def holding(self, start: int, end: int) -> tuple[int, int]:
        """Tokens [first, last) that hold any of the characters [start, end)."""
        places = enumerate(zip(self.starts, self.ends, strict=True))
        held = [i for i, (a, b) in places if a < b and a < end and b > start]
        return held[0], held[-1] + 1


def render(
    sample: Sample,
    tokenizer: Any,
    rules: PromptRules,
    *,
    max_input_tokens: int | None = None,
    context_limit: int | None = None,
) -> Prompt:
    """Build the prompt of a sample.

    Args:
        sample: fills its task's template.
        tokenizer: a fast transformers tokenizer.
        rules: the protocol profile's part on prompts.
        max_input_tokens: prompt tokens, before the tokenizer's own chat template, above which
            middle truncation sets in; None: what `context_limit` leaves (see `input_limit`).
        context_limit: positions the model may use; None: unlimited.

    Returns:
        The prompt; at most `context_limit` tokens.

    Raises:
        UserError: the prompt does not fit, or the tokenizer is not a fast one.
    """
    if not tokenizer.is_fast:
        raise UserError(f"{type(tokenizer).__name__} is not a fast tokenizer: give one that is")
    chat = _chat_template(sample.task, tokenizer, rules)
    prompt = _filled(sample)
    if chat == "llama2":
        prompt = prompt.moved(f"[INST] {prompt.text} [/INST]", len("[INST] "))
    tokens = _encoded(prompt.text, tokenizer)
    cut = 0
    if rules.truncation == "middle" and not sample.task.length_setting:
        if max_input_tokens is None and context_limit is not None:
            max_input_tokens = input_limit(context_limit, sample.task, tokenizer, rules)
        if max_input_tokens is not None and len(tokens.ids) > max_input_tokens:
            cut = len(tokens.ids) - max_input_tokens // 2 * 2
            prompt = _without_middle(prompt, tokens, max_input_tokens, tokenizer)
            tokens = _encoded(prompt.text, tokenizer)
    if chat == "official":
        prompt = _in_chat(prompt, tokenizer)
    prompt = replace(prompt, text=prompt.text + sample.answer_prefix)
    if chat == "official" or sample.answer_prefix:
        tokens = _encoded(prompt.text, tokenizer)
    if context_limit is not None and len(tokens.ids) > context_limit:
        remedy = f"set max_input_tokens below {context_limit}"
        if sample.task.length_setting:
            remedy = f"give smaller {sample.task.length_setting}"
        elif rules.truncation == "none":
            remedy = "set protocol.truncation=middle"
        raise UserError(
            f"sample {sample.id} of {sample.task.name} has {len(tokens.ids)} tokens, more than the "
            f"model's {context_limit}: {remedy} or take a model with a longer context"
        )
    return Prompt(
        ids=tuple(tokens.ids),
        context_end=tokens.before(prompt.border),
        tokens_cut=cut,
        text_hash=hashlib.blake2b(prompt.text.encode(), digest_size=16).hexdigest(),
        spans={name: tokens.holding(*span) for name, span in prompt.spans.items()},
        chat_template=chat,
        profile=rules,
    )


def input_limit(context_limit: int, task: Task, tokenizer: Any, rules: PromptRules) -> int:
    """Prompt tokens that leave room in the context for the chat template and the answer.

    Raises:
        UserError: nothing is left.
    """
    around = 0
    if _chat_template(task, tokenizer, rules) == "official":
        with_chat = _encoded(_in_chat(_Text(MARK, 0), tokenizer).text, tokenizer)
        around = len(with_chat.ids) - len(_encoded(MARK, tokenizer).ids)
    limit = context_limit - task.max_new_tokens - max(0, around)
    if limit < 2:
        raise UserError(
            f"a context of {context_limit} tokens has no room for {task.name}, which generates "
            f"{task.max_new_tokens}: take a model with a longer context"
        )
    return limit


def _chat_template(task: Task, tokenizer: Any, rules: PromptRules) -> str:
    """What goes around a task's prompts; base models have no template of their own."""
    if rules.chat_template == "official" and not (task.chat_template and tokenizer.chat_template):
        return "none"
    return rules.chat_template


def prompt_text(sample: Sample) -> str:
    """The whole prompt as the benchmark words it: nothing cut, no chat template around it."""
    return _filled(sample).text


def _filled(sample: Sample) -> _Text:
    """The task's template with the sample in it; the question starts after the context."""
    head, _, tail = sample.task.template.partition("{context}")
    head, tail = (part.replace("{input}", sample.input) for part in (head, tail))
    context = _Text(sample.context, len(sample.context), sample.spans)
    return context.moved(head + sample.context + tail, len(head))


def _encoded(text: str, tokenizer: Any) -> _Tokens:
    """Tokenize a text, adding special tokens unless it brings its beginning of sequence along."""
    has_bos = tokenizer.bos_token is not None and text.startswith(tokenizer.bos_token)
    encoding = tokenizer(
        text,
        add_special_tokens=not has_bos,
        return_offsets_mapping=True,
        truncation=False,
        verbose=False,  # a prompt longer than model_max_length is dealt with here
    )
    offsets = encoding["offset_mapping"]
    return _Tokens(encoding["input_ids"], [a for a, _ in offsets], [b for _, b in offsets])


def _without_middle(prompt: _Text, tokens: _Tokens, max_input_tokens: int, tokenizer: Any) -> _Text:
    """Keep the text of the first and the last `max_input_tokens // 2` tokens."""
    half = max_input_tokens // 2
    if half < 1:
        raise UserError(f"max_input_tokens {max_input_tokens} is too small: give at least 2")

    def text_of(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=True))

    first, last = tokens.ids[:half], tokens.ids[-half:]
    # Decoding may change the text (clean-up of spaces, a lost leading space), so the border is
    # found by decoding the context's share of a half, not by counting characters of the original.
    context_tokens = tokens.before(prompt.border)
    context_in_last = context_tokens - (len(tokens.ids) - half)
    start = text_of(first)
    if context_in_last > 0:
        border = len(start) + len(text_of(last[:context_in_last]))
    else:
        border = len(text_of(first[:context_tokens]))
    return _Text(start + text_of(last), border)


def _in_chat(prompt: _Text, tokenizer: Any) -> _Text:
    """Put the tokenizer's chat template around a prompt, as one user turn with the answer's cue."""
    before, after = chat_around(tokenizer)
    text = in_chat(prompt.text, tokenizer)
    user_text = text[len(before) : len(text) - len(after)]
    # Some templates strip the user's text at both ends.
    stripped = max(0, prompt.text.find(user_text))
    border = min(max(prompt.border - stripped, 0), len(user_text))
    return prompt.moved(text, len(before) - stripped, len(before) + border)


