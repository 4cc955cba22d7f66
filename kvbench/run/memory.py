"""Bytes that a prefill and a decode batch take, known before they are taken.

Estimates, not measurements: what stays is counted tensor by tensor, what passes is one layer's
activations. All are by device: a model over several stops where the first of them is full. Knows
nothing of methods.

Letters: L layers, Q query heads, G KV heads, T prompt tokens, W window, D head dim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch

from kvbench.base.sizes import shown_bytes
from kvbench.cache.store import Compressed
from kvbench.decode.batch import held_bytes
from kvbench.model.loading import LoadedModel
from kvbench.prefill.needs import Needs
from kvbench.prefill.state import Prefill

Bytes = Counter[torch.device]
"""Bytes on each device. `a + b <= c` says whether both fit into c on every one of them."""

_QUERIES_AT_ONCE = 128
"""Queries whose weights are held at once where attention is summed or compared."""

SHARE_OF_FREE = 0.9
"""Of the free memory that a run lets itself take: estimates are not exact, others run too."""


def free_bytes(device: torch.device) -> int:
    """Memory of one device that can be taken now; what torch keeps unused of a GPU's is free."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + kept)
    import psutil

    return int(psutil.virtual_memory().available)


def bytes_to_take(model: LoadedModel, stated: int | None = None) -> Bytes:
    """Memory that a run lets itself take beside the model, on each of its devices.

    Args:
        model: asked for its devices.
        stated: what the user allows on each; None: most of what is free.
    """
    return Bytes({d: stated or int(free_bytes(d) * SHARE_OF_FREE) for d in model.devices})


def shortage(needed: Bytes, room: Bytes) -> str:
    """Say in half a line where what is needed does not fit."""
    device = max(needed, key=lambda d: needed[d] - room[d])
    at = f" on {device}" if len(room) > 1 else ""
    return (
        f"needs about {shown_bytes(needed[device])}{at}, {shown_bytes(room[device])} may be taken"
    )


def times_in(room: Bytes, needs: Iterable[Bytes]) -> int:
    """How many times any of what is needed fits, whichever device is full first."""
    return min(room[device] // size for needed in needs for device, size in needed.items())


def prefill_bytes(model: LoadedModel, tokens: int, needs: Needs) -> Bytes:
    """Bytes at the peak of a prefill of `tokens` tokens that captures `needs`.

    What stays of a layer lies on its device; what passes passes through every one.
    """
    g = model.geometry
    config = model.network.config
    element = model.network.dtype.itemsize
    keys = g.layers * g.kv_heads * tokens * g.head_dim * element
    # A fifth: what methods that read keys before RoPE remember between two budgets.
    kept = 2 * keys + keys * needs.pre_rope_keys * 6 // 5
    kept += g.layers * g.query_heads * min(needs.window, tokens) * g.head_dim * element
    sums = needs.column_sums + len(needs.last_block_sums)
    scores = g.query_heads * sums + g.kv_heads * len(needs.reconstructions)
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
    elif sums:
        keys_weighed = tokens
    attention += 3 * 4 * _QUERIES_AT_ONCE * g.query_heads * keys_weighed
    feed_forward = 3 * tokens * config.intermediate_size * element
    passing = 2 * tokens * config.hidden_size * element + max(attention, feed_forward)
    layers = Counter(model.layer_devices)
    return Bytes({d: int(kept * layers[d] / g.layers + passing) for d in model.devices})


def bytes_held(prefill: Prefill, model: LoadedModel) -> Bytes:
    """Bytes of every tensor that a prefill keeps."""
    devices = model.layer_devices
    held = Bytes({model.device: held_bytes(prefill.last_logits)})
    for device in set(devices):
        layers = zip(prefill.layers, devices, strict=True)
        held[device] += held_bytes([layer for layer, at in layers if at == device])
    return held


def decode_bytes(cache: Compressed, later_tokens: int, model: LoadedModel) -> Bytes:
    """Bytes that decoding from a cache will hold at most.

    Args:
        cache: whatever it stores; read as it is, or not at all.
        later_tokens: tokens fed and generated after compression.
        model: its head dim, dtype and devices.
    """
    g = model.geometry
    token = 2 * g.kv_heads * g.head_dim * model.network.dtype.itemsize
    total = Bytes()
    for device in set(model.layer_devices):
        stores = zip(cache.layers, model.layer_devices, strict=True)
        total[device] = held_bytes(
            [(s.segments(), s if s.absorb_every else None) for s, at in stores if at == device]
        )
    for store, device in zip(cache.layers, model.layer_devices, strict=True):
        waiting = later_tokens
        if store.absorb_every:
            waiting = min(later_tokens, store.absorb_every)
            total[device] += token * later_tokens
        # A tail grows by sixteen tokens or a quarter; some keys wait before RoPE too.
        tail = token * max(16, waiting * 5 // 4)
        total[device] += tail * 3 // 2 if store.tail_needs_pre_rope else tail
    return total


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on a GPU or not."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # torch's CPU allocator has no exception of its own.
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
