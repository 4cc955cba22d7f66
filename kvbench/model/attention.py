"""The one attention function given to transformers, and the attention sums computed beside it.

transformers calls `dispatch` in every attention layer of every covered family; a forward that was
given a server, `model(..., kvbench=server)`, is served by `server.attend`, any other one by plain
causal attention. Nothing here builds a T x T tensor for all heads.

Letters: B batch, Q query heads, G KV heads, g = Q / G, t new tokens, T prompt tokens, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kvbench.base.errors import UserError
from kvbench.model.hooks import record_without_rope

IMPLEMENTATION = "kvbench"
"""The value of `attn_implementation` that selects `dispatch`."""

_UNREAD = frozenset(
    (
        "cache_position",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "use_cache",
    )
)
"""What transformers hands to every attention function and no attention depends on."""

_OF_THE_MODULE: Any = object()
"""A window that only the mask would say: qwen2_moe's stands on its attention module."""

_QUERY_BLOCK = 128  # queries per block where logits are materialized: Q * 128 * T floats at most


@dataclass(frozen=True)
class AttentionRule:
    """What a layer's attention is beside softmax(q.k) v."""

    scaling: float
    """Factor on q.k before the softmax."""
    sliding_window: int | None = None
    """Key at p_k is visible from query at p_q iff p_q - sliding_window < p_k <= p_q; None: all."""
    softcap: float | None = None
    """Logits become softcap * tanh(logits / softcap); None: untouched."""


class AttentionServer(Protocol):
    """What a forward does with the queries, keys and values of each layer."""

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rule: AttentionRule,
    ) -> Tensor:
        """Return the attention output [B, Q, t, D] of one layer, called in model order.

        Args:
            layer: index of the layer.
            q: [B, Q, t, D] queries after RoPE.
            k: [B, G, t, D] keys after RoPE of the same t tokens, not contiguous.
            v: [B, G, t, D] values of the same t tokens, not contiguous.
            rule: of the layer.
        """
        ...


def dispatch(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = _OF_THE_MODULE,
    softcap: float | None = None,
    is_causal: bool | None = None,
    kvbench: AttentionServer | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Serve one attention layer: the function registered with transformers.

    No mask is registered under the same name, so transformers passes none and drops padding
    masks unseen; causality and the sliding window are the server's own affair.

    Returns:
        ([B, t, Q, D] output, None): transformers' transposed convention, and no weights.

    Raises:
        UserError: the layer's attention is another one than `AttentionRule` says.
    """
    if attention_mask is not None:
        raise ValueError("kvbench attention takes no mask: batches are unpadded")
    for name, given in others.items():
        if given is not None and name not in _UNREAD:
            raise _other_attention(module, f"is given {name}")
    if dropout:
        raise _other_attention(module, f"drops weights at random (dropout={dropout})")
    if is_causal is False or not getattr(module, "is_causal", True):
        raise _other_attention(module, "looks ahead (is_causal=False)")
    if key.shape != value.shape:
        sizes = f"keys of {key.shape[-1]} numbers and values of {value.shape[-1]}"
        raise _other_attention(module, f"has {sizes}")
    if sliding_window is _OF_THE_MODULE:
        sliding_window = getattr(module, "sliding_window", None)
    rule = AttentionRule(scaling, sliding_window, softcap)
    if kvbench is None:
        out = causal_attention(query, key, value, rule)
    else:
        layer = module.layer_idx
        assert isinstance(layer, int)
        record_without_rope(module, query, key)
        out = kvbench.attend(layer, query, key, value, rule)
    return out.transpose(1, 2), None


def _other_attention(module: nn.Module, what: str) -> UserError:
    return UserError(
        f"{type(module).__name__} {what}, which kvbench's attention does not compute: take a model"
        " of another family"
    )


def register() -> None:
    """Make `attn_implementation="kvbench"` known to transformers; safe to call again."""
    from transformers import AttentionInterface

    AttentionInterface.register(IMPLEMENTATION, dispatch)


def causal_attention(q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule) -> Tensor:
    """Exact causal attention of T tokens over themselves; softmax in float32.

    Args:
        q: [B, Q, T, D].
        k: [B, G, T, D]; query heads i*g .. i*g + g - 1 read KV head i.
        v: [B, G, T, D].
        rule: of the layer.

    Returns:
        [B, Q, T, D] in q's dtype.
    """
    tokens = q.shape[2]
    assert k.shape[2] == tokens, "causal_attention takes the keys of the same tokens only"
    sliding_window = rule.sliding_window
    if sliding_window is not None and sliding_window >= tokens:
        sliding_window = None
    if rule.softcap is None and sliding_window is None:
        return _grouped_sdpa(q, k, v, rule.scaling, causal=True)
    out = torch.empty_like(q)
    for start in range(0, tokens, _QUERY_BLOCK):
        end = min(start + _QUERY_BLOCK, tokens)
        first = _first_visible(start, sliding_window)
        block, keys, values = q[:, :, start:end], k[:, :, first:end], v[:, :, first:end]
        hidden = _hidden(start, end, first, sliding_window, q.device)
        out[:, :, start:end] = _masked(block, keys, values, rule, hidden)
    return out


def attention_at(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_at: Tensor,
    key_at: Tensor,
    rule: AttentionRule,
) -> Tensor:
    """Exact attention of tokens over keys that lie at any ascending positions, gaps included.

    Args:
        q: [B, Q, t, D].
        k: [B, G, n, D].
        v: [B, G, n, D].
        query_at: [t] positions of the queries, ascending.
        key_at: [n] positions of the keys, ascending; a query sees those at or before its own.
        rule: of the layer; its window counts positions.

    Returns:
        [B, Q, t, D] in q's dtype.
    """
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for start in range(0, q.shape[2], _QUERY_BLOCK):
        some = slice(start, min(start + _QUERY_BLOCK, q.shape[2]))
        hidden = hidden_at(query_at[some], key_at, rule.sliding_window)
        out[:, :, some] = _masked(q[:, :, some], k, v, rule, hidden)
    return out


def column_sums(q: Tensor, k: Tensor, rule: AttentionRule) -> Tensor:
    """Attention each key receives, summed over all queries of a causal prefill.

    Streamed over KV heads and blocks of 128 queries, in float32 whatever the model's dtype.

    Args:
        q: [Q, T, D] queries of all tokens, after RoPE.
        k: [G, T, D] keys after RoPE.
        rule: of the layer.

    Returns:
        [Q, T] float32; a head's row sums to T.
    """

    def seen(start: int, end: int) -> tuple[int, Tensor]:
        first = _first_visible(start, rule.sliding_window)
        return first, _hidden(start, end, first, rule.sliding_window, q.device)

    return _summed(q, k, rule, seen)


def column_sums_last_block(q: Tensor, k: Tensor, rule: AttentionRule, block: int) -> Tensor:
    """Column sums where only the last `block` queries are kept from later keys.

    Earlier queries see the whole prompt, its future too, and no sliding window is applied: what
    KVCache-Factory's scores were made of until its fix of 2026-06-22 (9f9aa2e).

    Args:
        q: [Q, T, D] queries of all tokens, after RoPE.
        k: [G, T, D] keys after RoPE.
        rule: of the layer.
        block: W, tokens of the block.

    Returns:
        [Q, T] float32; a head's row sums to T.
    """
    tokens = q.shape[1]
    at = torch.arange(tokens, device=q.device)

    def seen(start: int, end: int) -> tuple[int, Tensor]:
        hidden = hidden_at(at[start:end], at, None)
        hidden[: max(0, tokens - block - start)] = False
        return 0, hidden

    return _summed(q, k, rule, seen)


def _summed(
    q: Tensor, k: Tensor, rule: AttentionRule, seen: Callable[[int, int], tuple[int, Tensor]]
) -> Tensor:
    """Column sums [Q, T], of a KV head and a block of queries at a time.

    `seen` says of queries start .. end the first key any of them may see, and which of the keys
    from there to the end of its columns are hidden from each.
    """
    heads, tokens, _ = q.shape
    sums = torch.zeros(heads, tokens, dtype=torch.float32, device=q.device)
    group = heads // k.shape[0]
    for head in range(k.shape[0]):
        some = slice(head * group, (head + 1) * group)
        queries, own = q[some], sums[some]
        keys = k[head : head + 1].float().unsqueeze(0)
        for start in range(0, tokens, _QUERY_BLOCK):
            end = min(start + _QUERY_BLOCK, tokens)
            first, hidden = seen(start, end)
            last = first + hidden.shape[1]
            block = queries[:, start:end].unsqueeze(0)
            # Without a name, so that no block's weights are held while the next one's are made.
            received = attention_weights(block, keys[:, :, first:last], rule, hidden).sum(dim=-2)
            own[:, first:last] += received.view(group, last - first)
    return sums


def _grouped_sdpa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scaling: float,
    causal: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """SDPA of [B, Q, t, D] queries over [B, G, n, D] keys and values.

    CPU, 8192 tokens, 9/3 heads of 64: enable_gqa takes 0.56 s and 22 MB, repeated K and V 0.56 s
    and 59 MB. On CUDA only the flash kernel takes enable_gqa, and it takes no mask, no float32 and
    no GPU before sm80; the fallback builds the whole matrix. There masked heads are packed, others
    repeated, for the memory-efficient kernel.
    """
    gqa = q.shape[1] != k.shape[1]
    if gqa and q.is_cuda:
        if mask is not None:
            return packed_attention(q, k, v, scaling, mask)
        if q.dtype == torch.float32 or torch.cuda.get_device_capability(q.device) < (8, 0):
            group = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
            gqa = False
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=gqa
    )


def packed_attention(q: Tensor, k: Tensor, v: Tensor, scaling: float, mask: Tensor) -> Tensor:
    """Masked attention with the queries of a KV head's group as one head: [B, G, g * t, D].

    Every kernel that takes a mask takes it so, and the mask is all that grows: g * t * n, where
    repeated keys and values would take 2 * Q * n * D.

    Args:
        q: [B, Q, t, D]; query heads i*g .. i*g + g - 1 read KV head i.
        k: [B, G, n, D].
        v: [B, G, n, D].
        scaling: factor on q.k before the softmax.
        mask: [t, n] bool, true where a query sees a key.

    Returns:
        [B, Q, t, D] in q's dtype.
    """
    batch, heads, t, dim = q.shape
    kv_heads = k.shape[1]
    rows = q.reshape(batch, kv_heads, -1, dim)
    of_rows = mask.repeat(heads // kv_heads, 1)
    out = F.scaled_dot_product_attention(rows, k, v, attn_mask=of_rows, scale=scaling)
    return out.reshape(batch, heads, t, -1)


def _masked(q: Tensor, k: Tensor, v: Tensor, rule: AttentionRule, hidden: Tensor) -> Tensor:
    """Attention of [B, Q, t, D] over [B, G, n, D], but for what is `hidden` [t, n]."""
    if rule.softcap is None:
        return _grouped_sdpa(q, k, v, rule.scaling, mask=~hidden)
    # No kernel bounds logits.
    weights = attention_weights(q, k, rule, hidden)
    batch, kv_heads, group, t, n = weights.shape
    rows = weights.to(v.dtype).view(batch, kv_heads, group * t, n) @ v
    return rows.view(batch, kv_heads * group, t, -1)


def attention_weights(q: Tensor, k: Tensor, rule: AttentionRule, hidden: Tensor) -> Tensor:
    """Softmax weights [B, G, g, t, n] float32 of q [B, Q, t, D] over k [B, G, n, D].

    `hidden` [t, n] is true where a query must not see a key; the rule's window is not read.
    """
    batch, heads, t, dim = q.shape
    kv_heads, n = k.shape[1], k.shape[2]
    grouped = q.float().reshape(batch, kv_heads, -1, dim)  # [B, G, g*t, D]
    products = grouped @ k.float().transpose(-1, -2)
    return masked_softmax(products.view(batch, kv_heads, heads // kv_heads, t, n), rule, hidden)


def masked_softmax(products: Tensor, rule: AttentionRule, hidden: Tensor | None = None) -> Tensor:
    """Softmax weights of the products q.k: the one place that scales, caps and hides them.

    Args:
        products: [..., n] float32, which is written to.
        rule: of the layer; its window is not read.
        hidden: true where a query must not see a key, of a shape that broadcasts; None: nowhere.

    Returns:
        [..., n] float32.
    """
    logits = products.mul_(rule.scaling)
    if rule.softcap is not None:
        logits.div_(rule.softcap).tanh_().mul_(rule.softcap)
    if hidden is not None:
        logits.masked_fill_(hidden, float("-inf"))
    return logits.softmax(dim=-1)


def hidden_at(query_at: Tensor, key_at: Tensor, sliding_window: int | None) -> Tensor:
    """[t, n] bool: true where a query at `query_at` [t] must not see a key at `key_at` [n]."""
    query_at, key_at = query_at[:, None], key_at[None, :]
    hidden = key_at > query_at
    if sliding_window is not None:
        hidden |= key_at <= query_at - sliding_window
    return hidden


def _first_visible(start: int, sliding_window: int | None) -> int:
    """The first key that any query at position >= start sees."""
    return 0 if sliding_window is None else max(0, start - sliding_window + 1)


def _hidden(
    start: int, end: int, first: int, sliding_window: int | None, device: torch.device
) -> Tensor:
    """[end - start, end - first] bool: true where a query at start.. must not see a key first.."""
    query_at = torch.arange(start, end, device=device)
    return hidden_at(query_at, torch.arange(first, end, device=device), sliding_window)


def attention_with_lse(
    q: Tensor, k: Tensor, v: Tensor, scaling: float, causal: bool = False
) -> tuple[Tensor, Tensor] | None:
    """Attention and the log-sum-exp of each query's logits, from one fused kernel.

    `merged_attention` joins what was taken over several sets of keys.

    Args:
        q: [B, Q, t, D].
        k: [B, G, n, D], n >= 1.
        v: [B, G, n, D].
        scaling: factor on q.k.
        causal: with n = t, whether query i sees the keys 0 .. i only.

    Returns:
        [B, Q, t, D] in q's dtype and [B, Q, t] in float32; None where no kernel gives both.
    """
    if q.shape[-1] != v.shape[-1] or q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return None
    batch, heads, t, dim = q.shape
    group = heads // k.shape[1]
    # Not every release's kernels know groups: either their queries follow each other in one head,
    # or, where a query's place counts, the few keys are repeated.
    if group > 1 and causal:
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    elif group > 1:
        q = q.reshape(batch, heads // group, group * t, dim)
    found = _fused_with_lse(q, k, v, scaling, causal)
    if found is None:
        return None
    out, lse = found
    return out.reshape(batch, heads, t, dim), lse.reshape(batch, heads, t)


def _fused_with_lse(
    q: Tensor, k: Tensor, v: Tensor, scaling: float, causal: bool
) -> tuple[Tensor, Tensor] | None:
    """`attention_with_lse` of as many heads of queries as of keys."""
    kernels = torch.ops.aten
    if q.device.type == "cpu":
        on_cpu = kernels._scaled_dot_product_flash_attention_for_cpu
        out, lse = on_cpu(q, k, v, is_causal=causal, scale=scaling)
        return out, lse
    # The kernels for CUDA read 16 bytes at a time.
    if q.device.type != "cuda" or q.shape[-1] * q.element_size() % 16:
        return None
    cuda = torch.backends.cuda
    asked = cuda.SDPAParams(q, k, v, None, 0.0, causal, False)
    if cuda.can_use_flash_attention(asked):
        flash = kernels._scaled_dot_product_flash_attention
        out, lse, *_ = flash(q, k, v, is_causal=causal, scale=scaling)
        return out, lse
    if not cuda.can_use_efficient_attention(asked):
        return None
    efficient = kernels._scaled_dot_product_efficient_attention
    out, lse, *_ = efficient(q, k, v, None, True, is_causal=causal, scale=scaling)
    return out, lse.narrow(2, 0, q.shape[2])  # it comes padded to a multiple of 32 queries


def merged_attention(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Attention over all keys, from attention and log-sum-exp over parts of them; no key in two.

    Args:
        parts: [B, Q, t, D] and [B, Q, t] each, as `attention_with_lse` returns them.

    Returns:
        [B, Q, t, D] in the parts' dtype.
    """
    of_all = torch.stack([lse for _, lse in parts]).logsumexp(0)
    merged = sum(out * (lse - of_all).exp()[..., None] for out, lse in parts)
    assert isinstance(merged, Tensor)
    return merged.to(parts[0][0].dtype)
