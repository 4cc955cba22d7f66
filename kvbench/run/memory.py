"""Bytes that a prefill and a decode batch take, known before they are taken.

Estimates, not measurements: what stays is counted tensor by tensor, what passes is one layer's
activations. All are by device: a model over several stops where the first of them is full. Knows
nothing of methods.

Letters: L layers, Q query heads, G KV heads, T prompt tokens, W window, D head dim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from kvbench.base.sizes import shown_bytes
from kvbench.cache.store import Compressed
from kvbench.decode.batch import held_bytes
from kvbench.model.hooks import BLOCK, feed_forwards, is_plain
from kvbench.model.loading import LoadedModel
from kvbench.prefill.needs import Needs, Reconstruction
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

    What stays of a layer lies on its device; what passes passes through every one. Within 5% of
    what is measured on Llama's shapes (results/prefill.md).
    """
    g = model.geometry
    element = model.network.dtype.itemsize
    keys = g.layers * g.kv_heads * tokens * g.head_dim * element
    kept = 2 * keys + keys * needs.pre_rope_keys
    kept += g.layers * g.query_heads * min(needs.window, tokens) * g.head_dim * element
    sums = needs.column_sums + len(needs.last_block_sums)
    scores = g.query_heads * sums + g.kv_heads * len(needs.reconstructions)
    kept += 4 * g.layers * tokens * scores
    moments = g.layers * g.query_heads * g.head_dim * (g.head_dim + 1)
    kept += 4 * moments * len(needs.query_statistics)
    passing = tokens * _bytes_per_token(model, tokens, needs)
    passes = [_pass_bytes(model, tokens, x) for x in needs.reconstructions]
    # A fifth: what methods that read keys before RoPE remember between two budgets.
    remembered = keys * needs.pre_rope_keys // 5
    most = dict.fromkeys(model.devices, max(passing, remembered, *passes))
    output = model.network.get_output_embeddings().weight
    if output.device.type == "cpu" and element < 4:
        # torch copies the output layer's weights to multiply one token by them.
        last = tokens * output.shape[1] * element + output.nbytes
        most[output.device] = max(most.get(output.device, 0), last)
    layers = Counter(model.layer_devices)
    return Bytes({d: int(kept * layers[d] / g.layers + x) for d, x in most.items()})


def _bytes_per_token(model: LoadedModel, tokens: int, needs: Needs) -> int:
    """The most that the last layer's activations take of each token, beside what is kept of it.

    The embeddings and the layer's input are held throughout.
    """
    g = model.geometry
    config = model.network.config
    element = model.network.dtype.itemsize
    hidden = config.hidden_size * element
    q, kv = g.query_heads * g.head_dim * element, g.kv_heads * g.head_dim * element
    group = g.query_heads // g.kv_heads
    pre_rope = kv * needs.pre_rope_keys
    # Queries, then keys, beside three products of their rotation; K and V are not kept yet.
    moments = [3 * hidden + max(4 * q, 2 * q + 3 * kv) - pre_rope]
    # Queries, K and V as the projections laid them out, the attention's output and its projection.
    attention = 3 * hidden + q + 2 * kv
    moments.append(attention + q + hidden)
    if needs.query_statistics:
        wide = (2 if element < 4 else 1) * 4 * group * g.head_dim
        moments.append(attention + q + kv - pre_rope + wide)
    if needs.column_sums or needs.last_block_sums:
        wide = 4 * g.head_dim * (element < 4)
        moments.append(attention + (2 * 4 * group + 1) * _QUERIES_AT_ONCE + wide)
    if getattr(config, "attn_logit_softcapping", None):
        moments.append(attention + q + 2 * 4 * g.query_heads * _QUERIES_AT_ONCE)
    # A norm's float32 copies; gate, up projection and their product beside its result.
    moments.append(3 * hidden + 2 * 4 * config.hidden_size)
    moments.append(4 * hidden + _feed_forward_bytes(model.network, tokens))
    tables = 2 * g.head_dim * element
    if needs.pre_rope_keys or needs.query_statistics:
        tables *= 2
    return int(max(moments) + tables)


def _feed_forward_bytes(network: Any, tokens: int) -> int:
    """What a feed-forward layer takes of each token beside its input."""
    config = network.config
    element = network.dtype.itemsize
    hidden, wide = config.hidden_size * element, 3 * config.intermediate_size * element
    if not all(map(is_plain, feed_forwards(network))):
        experts = getattr(config, "num_experts_per_tok", None)
        if experts is None:
            return int(wide)
        wide = 3 * getattr(config, "moe_intermediate_size", config.intermediate_size) * element
        return int(experts * (wide + 2 * hidden))
    if tokens <= BLOCK:
        return int(wide)
    return int(hidden + wide / -(-tokens // BLOCK))


def _pass_bytes(model: LoadedModel, tokens: int, passes: Reconstruction) -> int:
    """What one reconstruction pass over a cache of `tokens` tokens takes."""
    g = model.geometry
    config = model.network.config
    element = model.network.dtype.itemsize
    repeated = min(passes.chunk_tokens, tokens)
    asking = [passes.first_prompt] if repeated == tokens else [passes.later_prompt]
    fed = repeated + len(model.tokenizer(asking, add_special_tokens=False).input_ids[0])
    q, kv = g.query_heads * g.head_dim, g.kv_heads * g.head_dim
    # Three parts of the attention beside a block's products with the chunk and either the next
    # block's or the parts' own in float32; the chunk's keys and the layer's others, gathered.
    products = 4 * _QUERIES_AT_ONCE * g.query_heads * repeated
    attention = fed * element * (3 * config.hidden_size + 4 * q + 2 * kv + 2 * g.head_dim)
    attention += products + max(products, 3 * 4 * fed * q) + 4 * repeated * kv * (element < 4)
    attention += 2 * (tokens - repeated) * kv * element
    if getattr(config, "attn_logit_softcapping", None) or getattr(config, "sliding_window", None):
        # No fused kernel: all keys and values beside what is fed, and weights over all of them.
        attention += 2 * (repeated + fed) * kv * element
        attention += 2 * 4 * _QUERIES_AT_ONCE * g.query_heads * (tokens + fed)
    return int(max(attention, fed * _bytes_per_token(model, fed, Needs())))


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
