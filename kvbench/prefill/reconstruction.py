"""How much a model reads each cached token when it repeats the context: KVzip's scores.

After the prefill the model is made to repeat its context, chunk by chunk and with the right tokens
given (teacher forcing), at positions behind the prompt. The most attention that a cached token
receives from what is fed is its score. The cache stays as it was; what is fed is kept nowhere.

Letters: Q query heads, G KV heads, T prompt tokens, t tokens fed, n keys scored, D head dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kvbench.model.attention import AttentionRule, attention_at, attention_weights, hidden_at
from kvbench.model.chat import chat_around
from kvbench.model.loading import LoadedModel
from kvbench.prefill.needs import Reconstruction
from kvbench.prefill.state import LayerState

_QUERY_BLOCK = 128  # queries scored at once: Q * 128 * n floats


@dataclass(frozen=True)
class Around:
    """What the chat template puts around the user's text of one prompt."""

    prefix_tokens: int
    """Leading tokens of the prompt that belong to it, beginning of sequence included."""
    closing: str
    """What ends the user's turn and cues the answer; a newline where there is no template."""


def template_around(tokenizer: Any, ids: Sequence[int]) -> Around:
    """Find the chat template at the start of a prompt, by its tokens.

    The tokenizer's own template and Llama-2's bare `[INST]` are known. The template's last token
    may have merged with the text behind it, and then counts as text.
    """
    templates = [("[INST] ", " [/INST]")]
    if tokenizer.chat_template:
        templates.insert(0, chat_around(tokenizer))
    for before, after in templates:
        has_bos = tokenizer.bos_token is not None and before.startswith(tokenizer.bos_token)
        prefix = tokenizer(before, add_special_tokens=not has_bos).input_ids
        same = _common(prefix, ids)
        if same >= max(2, len(prefix) - 1):
            return Around(same, after)
    return Around(int(bool(ids) and ids[0] == tokenizer.bos_token_id), "\n")


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def chunks(start: int, end: int, size: int) -> list[tuple[int, int]]:
    """Cut start .. end into pieces of `size` tokens, the last one shorter."""
    return [(at, min(at + size, end)) for at in range(start, end, size)]


def passes_of(
    tokenizer: Any, ids: Sequence[int], around: Around, settings: Reconstruction
) -> Iterator[tuple[tuple[int, int], list[int]]]:
    """Yield each chunk's place in the prompt and the tokens fed to have it repeated."""

    def encoded(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False).input_ids)

    closing = encoded(around.closing)
    for start, end in chunks(around.prefix_tokens, len(ids), settings.chunk_tokens):
        if start == around.prefix_tokens:
            asked = encoded(settings.first_prompt)
        else:
            overlap = min(settings.overlap_tokens, settings.chunk_tokens)
            asked = [*encoded(settings.later_prompt), *ids[start - overlap : start]]
        yield (start, end), [*asked, *closing, *ids[start:end]]


def reconstruction_scores(
    model: LoadedModel,
    ids: Tensor,
    layers: tuple[LayerState, ...],
    around: Around,
    settings: Reconstruction,
) -> list[Tensor]:
    """Run the passes over a captured prompt.

    Args:
        model: the model.
        ids: [T] the prompt's tokens.
        layers: its ordinary prefill, which is read and left unchanged.
        around: what of the prompt is template.
        settings: how the context is repeated.

    Returns:
        Per layer [G, T] float32 in 0 .. 1; 0 in the template prefix.

    Raises:
        UserError: a longrope model would change its rotation for the tokens fed.
    """
    tokens = int(ids.shape[0])
    scores = [
        torch.zeros(s.kv_heads, tokens, dtype=torch.float32, device=s.k.device) for s in layers
    ]
    for chunk, fed in passes_of(model.tokenizer, ids.tolist(), around, settings):
        model.check_length(tokens, len(fed))
        at = torch.arange(tokens, tokens + len(fed), device=model.device)
        visible = settings.visible_before(chunk[0], around.prefix_tokens)
        with torch.inference_mode():
            model.network(
                input_ids=torch.tensor([fed], device=model.device),
                position_ids=at[None],
                past_key_values=None,
                use_cache=False,
                logits_to_keep=1,
                kvbench=_Pass(layers, scores, at, visible, chunk),
            )
    return scores


class _Pass:
    """Serves the attention of one pass, over cache and fed tokens, and scores one chunk."""

    def __init__(
        self,
        layers: tuple[LayerState, ...],
        scores: list[Tensor],
        at: Tensor,
        visible: int,
        chunk: tuple[int, int],
    ) -> None:
        self._layers = layers
        self._scores = scores
        self._at = at
        self._visible = visible
        self._chunk = chunk

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rule: AttentionRule,
    ) -> Tensor:
        """Write the chunk's scores and return the attention over the whole cache."""
        state = self._layers[layer]
        at = self._at.to(q.device)
        start, end = self._chunk
        visible = torch.arange(self._visible, device=q.device)
        scored = torch.cat([visible, torch.arange(start, end, device=q.device)])
        self._scores[layer][:, start:end] = most_attention(
            q,
            torch.cat([state.k[None, :, scored], k], 2),
            at,
            torch.cat([scored, at]),
            rule,
        )[:, len(visible) : len(scored)]
        cached = torch.arange(state.tokens, device=q.device)
        return attention_at(
            q,
            torch.cat([state.k[None], k], 2),
            torch.cat([state.v[None], v], 2),
            at,
            torch.cat([cached, at]),
            rule,
        )


def most_attention(
    q: Tensor,
    k: Tensor,
    query_at: Tensor,
    key_at: Tensor,
    rule: AttentionRule,
) -> Tensor:
    """The most attention each key receives from any query of its head's group: [G, n] float32.

    The softmax runs over these keys only.

    Args:
        q: [1, Q, t, D].
        k: [1, G, n, D].
        query_at: [t] positions.
        key_at: [n] positions.
        rule: of the layer; a key behind its window receives none.
    """
    most = torch.zeros(k.shape[1], k.shape[2], dtype=torch.float32, device=q.device)
    for block in range(0, q.shape[2], _QUERY_BLOCK):
        some = slice(block, block + _QUERY_BLOCK)
        hidden = hidden_at(query_at[some], key_at, rule.sliding_window)
        weights = attention_weights(q[:, :, some], k, rule, hidden)
        most = torch.maximum(most, weights.amax(dim=(0, 2, 3)))
    return most
