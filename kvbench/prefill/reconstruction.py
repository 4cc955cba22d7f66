"""How much a model reads each cached token when it repeats the context: KVzip's scores.

After the prefill the model is made to repeat its context, chunk by chunk and with the right tokens
given (teacher forcing), at positions behind the prompt. The most attention that a cached token
receives from what is fed is its score. The cache stays as it was; what is fed is kept nowhere.

Letters: Q query heads, G KV heads, T prompt tokens, t tokens fed, n keys scored, D head dim.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kvbench.model.attention import (
    AttentionRule,
    attention_at,
    attention_weights,
    attention_with_lse,
    hidden_at,
    merged_attention,
)
from kvbench.model.chat import chat_around
from kvbench.model.loading import LoadedModel
from kvbench.prefill.needs import Reconstruction
from kvbench.prefill.state import LayerState, Repetition

LEAST_CHUNK = 64
"""Tokens of the shortest chunk that is cut to fit a context: about twice what asks for it."""

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
    first, later, closing = _requests(tokenizer, around, settings)
    for start, end in chunks(around.prefix_tokens, len(ids), settings.chunk_tokens):
        if start == around.prefix_tokens:
            asked = first
        else:
            overlap = min(settings.overlap_tokens, settings.chunk_tokens)
            asked = [*later, *ids[start - overlap : start]]
        yield (start, end), [*asked, *closing, *ids[start:end]]


def within(
    tokenizer: Any, ids: Sequence[int], around: Around, settings: Reconstruction, room: int
) -> Reconstruction:
    """Shrink the chunks until no pass feeds more than `room` tokens, but not below `LEAST_CHUNK`.

    Settings whose passes fit are returned as they are.
    """
    longest = max((len(fed) for _, fed in passes_of(tokenizer, ids, around, settings)), default=0)
    if longest <= room:
        return settings
    first, later, closing = map(len, _requests(tokenizer, around, settings))
    asked = max(first, later + settings.overlap_tokens) + closing
    shrunk = max(room - asked, LEAST_CHUNK)
    return replace(settings, chunk_tokens=min(settings.chunk_tokens, shrunk))


def _requests(
    tokenizer: Any, around: Around, settings: Reconstruction
) -> tuple[list[int], list[int], list[int]]:
    """Tokens that ask for the first chunk and for a later one, and that end the turn."""
    texts = settings.first_prompt, settings.later_prompt, around.closing
    first, later, closing = (
        list(tokenizer(text, add_special_tokens=False).input_ids) for text in texts
    )
    return first, later, closing


def reconstruction_scores(
    model: LoadedModel,
    ids: Tensor,
    layers: tuple[LayerState, ...],
    around: Around,
    settings: Reconstruction,
) -> tuple[list[Tensor], Repetition]:
    """Run the passes over a captured prompt.

    What is fed stands behind the prompt. Where it would not fit the model's context, or would
    change a longrope model's rotation, chunks are shorter than `settings` says (`within`).

    Args:
        model: the model.
        ids: [T] the prompt's tokens.
        layers: its ordinary prefill, which is read and left unchanged.
        around: what of the prompt is template.
        settings: how the context is repeated.

    Returns:
        Per layer [G, T] float32 in 0 .. 1, 0 in the template prefix; and how it was repeated.

    Raises:
        UserError: a longrope model would change its rotation for the tokens fed.
    """
    prompt = ids.tolist()
    tokens = len(prompt)
    scores = [
        torch.zeros(s.kv_heads, tokens, dtype=torch.float32, device=s.k.device) for s in layers
    ]
    room = model.most_tokens(tokens) - tokens
    fitting = within(model.tokenizer, prompt, around, settings, room)
    passes = list(passes_of(model.tokenizer, prompt, around, fitting))
    longest = max((len(fed) for _, fed in passes), default=0)
    model.check_length(tokens, longest)
    # All that is fed reaches the device at once.
    every = torch.tensor([x for _, fed in passes for x in fed], device=model.device)
    at = torch.arange(tokens, tokens + longest, device=model.device)
    each = every.split_with_sizes([len(fed) for _, fed in passes])
    for (chunk, _), fed in zip(passes, each, strict=True):
        visible = settings.visible_before(chunk[0], around.prefix_tokens)
        with torch.inference_mode():
            model.network(
                input_ids=fed[None],
                position_ids=at[None, : len(fed)],
                past_key_values=None,
                use_cache=False,
                logits_to_keep=1,
                kvbench=_Pass(layers, scores, visible, chunk),
            )
    return scores, Repetition(fitting.chunk_tokens, max(0, longest - room))


class _Pass:
    """Serves the attention of one pass, over cache and fed tokens, and scores one chunk."""

    def __init__(
        self,
        layers: tuple[LayerState, ...],
        scores: list[Tensor],
        visible: int,
        chunk: tuple[int, int],
    ) -> None:
        self._layers = layers
        self._scores = scores
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
        out, most = read_cache(q, k, v, self._layers[layer], rule, self._visible, self._chunk)
        start, end = self._chunk
        self._scores[layer][:, start:end] = most
        return out


def read_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cached: LayerState,
    rule: AttentionRule,
    visible: int,
    chunk: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """Attention of fed tokens over a cache and themselves, and the most a chunk receives of it.

    A token's share is that of a softmax over the first `visible` tokens, the chunk and what is fed
    only; a head's share is the most of its group's queries.

    Args:
        q: [1, Q, t, D] queries of the tokens fed, which stand right behind the cached ones.
        k: [1, G, t, D].
        v: [1, G, t, D].
        cached: the layer, its T tokens at positions 0 .. T - 1.
        rule: of the layer; a key behind its window receives nothing.
        visible: leading tokens that share the softmax, none of them in the chunk.
        chunk: the places of its first token and behind its last.

    Returns:
        [1, Q, t, D] in q's dtype, and [G, n] float32 of the chunk's n tokens.
    """
    window = rule.sliding_window
    if rule.softcap is None and (window is None or window >= cached.tokens + q.shape[2]):
        found = _by_kernel(q, k, v, cached, rule.scaling, visible, chunk)
        if found is not None:
            return found
    return _by_blocks(q, k, v, cached, rule, visible, chunk)


def _by_kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cached: LayerState,
    scaling: float,
    visible: int,
    chunk: tuple[int, int],
) -> tuple[Tensor, Tensor] | None:
    """`read_cache` where every fed token sees all before it; None where no kernel gives sums.

    Kernels attend to the keys that share the softmax, to the rest of the cache and to what is fed;
    their log-sum-exps join the parts and are what the chunk's products are set off against.
    """
    start, end = chunk
    sharing = [slice(0, visible), slice(start, end)]
    others = [slice(visible, start), slice(end, cached.tokens)]
    parts = []
    for spans in (sharing, others):
        keys, values = (torch.cat([x[None, :, s] for s in spans], 2) for x in (cached.k, cached.v))
        if keys.shape[2]:
            parts.append(attention_with_lse(q, keys, values, scaling))
    parts.append(attention_with_lse(q, k, v, scaling, causal=True))
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        return None
    below = -torch.logaddexp(found[0][1], found[-1][1])  # [1, Q, t]
    scored = cached.k[:, start:end].float()
    kv_heads, _, dim = scored.shape
    most = torch.full(scored.shape[:2], -torch.inf, device=q.device)
    for block in range(0, q.shape[2], _QUERY_BLOCK):
        some = slice(block, block + _QUERY_BLOCK)
        queries = q[0, :, some].float().reshape(kv_heads, -1, dim)
        below_some = below[0, :, some].reshape(kv_heads, 1, -1)
        logits = torch.baddbmm(below_some, scored, queries.transpose(1, 2), alpha=scaling)
        most = torch.maximum(most, logits.amax(-1))
    return merged_attention(found), most.clamp_(max=0).exp_()


def _by_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cached: LayerState,
    rule: AttentionRule,
    visible: int,
    chunk: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    """`read_cache` under any rule: a block of queries after the other, over what it may see."""
    tokens, fed = cached.tokens, q.shape[2]
    start, end = chunk
    keys, values = torch.cat([cached.k[None], k], 2), torch.cat([cached.v[None], v], 2)
    at = torch.arange(tokens + fed, device=q.device)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    most = torch.zeros(k.shape[1], end - start, device=q.device)
    for block in range(0, fed, _QUERY_BLOCK):
        some = slice(block, min(block + _QUERY_BLOCK, fed))
        last = tokens + some.stop
        first = 0
        if rule.sliding_window is not None:
            first = max(0, tokens + block - rule.sliding_window + 1)
        queries, query_at, seen = q[:, :, some], at[tokens + block : last], slice(first, last)
        out[:, :, some] = attention_at(
            queries, keys[:, :, seen], values[:, :, seen], query_at, at[seen], rule
        )
        begin = max(start, first)
        if begin >= end:
            continue
        prefix = slice(min(first, visible), visible)
        sharing = [prefix, slice(begin, end), slice(max(first, tokens), last)]
        hidden = hidden_at(query_at, torch.cat([at[s] for s in sharing]), rule.sliding_window)
        shared_keys = torch.cat([keys[:, :, s] for s in sharing], 2)
        weights = attention_weights(queries, shared_keys, rule, hidden)
        before = prefix.stop - prefix.start
        received = weights[..., before : before + end - begin].amax(dim=(0, 2, 3))
        most[:, begin - start :] = torch.maximum(most[:, begin - start :], received)
    return out, most
