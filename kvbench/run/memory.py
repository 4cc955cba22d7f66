"""Bytes that a prefill and a decode batch take, known before they are taken.

Estimates, not measurements: what stays is counted tensor by tensor, what passes is one layer's
activations. Knows nothing of methods.

Letters: L layers, Q query heads, G KV heads, T prompt tokens, W window, D head dim.
"""

from __future__ import annotations

import torch

from kvbench.cache.store import Compressed
from kvbench.decode.batch import held_bytes
from kvbench.model.loading import LoadedModel
from kvbench.prefill.needs import Needs

_QUERIES_AT_ONCE = 128
"""Queries whose weights are held at once where attention is summed or compared."""

SHARE_OF_FREE = 0.9
"""Of the free memory that a run lets itself take: estimates are not exact, others run too."""


def free_bytes(device: torch.device) -> int:
    """Memory of a device that can be taken now; on a GPU, what torch keeps unused counts as free.

    Of a model spread over several devices this is asked of the first.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + kept)
    import psutil

    return int(psutil.virtual_memory().available)


def bytes_to_take(model: LoadedModel) -> int:
    """Memory that a run lets itself take beside the model."""
    return int(free_bytes(model.device) * SHARE_OF_FREE)


def prefill_bytes(model: LoadedModel, tokens: int, needs: Needs) -> int:
    """Bytes at the peak of a prefill of `tokens` tokens that captures `needs`."""
    g = model.geometry
    config = model.network.config
    element = model.network.dtype.itemsize
    keys = g.layers * g.kv_heads * tokens * g.head_dim * element
    # A fifth: what methods that read keys before RoPE remember between two budgets.
    kept = 2 * keys + keys * needs.pre_rope_keys * 6 // 5
    kept += g.layers * g.query_heads * min(needs.window, tokens) * g.head_dim * element
    scores = g.query_heads * needs.column_sums + g.kv_heads * len(needs.reconstructions)
    kept += 4 * g.layers * tokens * scores
    moments = g.layers * g.query_heads * g.head_dim * (g.head_dim + 1)
    kept += 4 * moments * len(needs.query_statistics)
    # The widest moment of a layer: the residual and its norm beside either q, k, v, the
    # attention's output and the weights of a block of queries, or the gate, the up projection and
    # their product.
    attention = 2 * tokens * (g.query_heads + g.kv_heads) * g.head_dim * element
    keys_weighed = 0
    if needs.reconstructions:
        keys_weighed = tokens + max(passes.chunk_tokens for passes in needs.reconstructions)
    elif needs.column_sums:
        keys_weighed = tokens
    attention += 3 * 4 * _QUERIES_AT_ONCE * g.query_heads * keys_weighed
    feed_forward = 3 * tokens * config.intermediate_size * element
    return int(kept + 2 * tokens * config.hidden_size * element + max(attention, feed_forward))


def decode_bytes(cache: Compressed, later_tokens: int, model: LoadedModel) -> int:
    """Bytes that decoding from a cache will hold at most.

    Args:
        cache: whatever it stores; read as it is, or not at all.
        later_tokens: tokens fed and generated after compression.
        model: its head dim and dtype.
    """
    g = model.geometry
    token = 2 * g.kv_heads * g.head_dim * model.network.dtype.itemsize
    total = held_bytes([(s.segments(), s if s.absorb_every else None) for s in cache.layers])
    for store in cache.layers:
        waiting = later_tokens
        if store.absorb_every:
            waiting = min(later_tokens, store.absorb_every)
            total += token * later_tokens
        # A tail grows by sixteen tokens or a quarter; some keys wait before RoPE too.
        tail = token * max(16, waiting * 5 // 4)
        total += tail * 3 // 2 if store.tail_needs_pre_rope else tail
    return total


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on a GPU or not."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # torch's CPU allocator has no exception of its own.
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
