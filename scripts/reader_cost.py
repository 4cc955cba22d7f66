"""What attention over stores as they lie costs on a CPU, beside SDPA over rows: one token.

    python scripts/reader_cost.py --tokens 4096

Each line reads one method's stores through one flat launch per layer, and compares it with
scaled_dot_product_attention over the rows the stores stand for, and over all rows (FullKV). Medians
over repetitions in which the three take turns; CPU seconds of one thread, summed over the layers,
and the worst layer. The prompt is the one of compression_cost.py; an 8B model's shape follows, of
random tensors. Needs numba.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import hydra
import numpy as np
import torch
import torch.nn.functional as F
from compression_cost import planned, prompt_ids
from torch import Tensor

from kvbench.base import provenance
from kvbench.cache.codebook import store_codebook
from kvbench.cache.quantized import store_quantized
from kvbench.cache.rows import store_ragged_rows, store_rows, store_whole
from kvbench.cache.store import Store
from kvbench.decode.cpu_kernels import FlatLaunch, reads
from kvbench.decode.reading import Reading, TailRows
from kvbench.model.attention import AttentionRule
from kvbench.model.loading import load
from kvbench.model.rotary import Rotary, RotaryTable
from kvbench.plan.variant import Variant
from kvbench.prefill.capture import capture
from kvbench.prefill.needs import Needs
from kvbench.prefill.state import LayerState, Prefill
from kvbench.run.caches import fitted_cache

VARIANTS = {
    "plain rows (fullkv)": ["method=fullkv"],
    "rows per KV head (snapkv)": ["method=snapkv", "budget=0.4"],
    "codebook (spindlekv)": ["method=spindlekv", "budget=0.4"],
    "union (snapkv heads=query)": ["method=snapkv", "method.heads=query", "budget=0.4"],
    "quantized, 2 bits": ["method=quantized", "method.bits=2"],
    "quantized, 4 bits": ["method=quantized", "method.bits=4"],
    "quantized, 8 bits": ["method=quantized", "method.bits=8"],
}
RAGGED = ["method=adakv", "budget=" + ",".join(f"{0.04 * i:.2f}" for i in range(2, 18))]
TAIL = 32  # rows that a tail has room for


@dataclass(frozen=True)
class Layer:
    """One layer's stores of a batch, and its queries."""

    full: LayerState
    stores: Sequence[Store]
    """One for each row of the batch."""

    @property
    def queries(self) -> Tensor:
        """[V, Q, 1, D], those of the last token."""
        return self.full.q_win[None, :, -1:].repeat(len(self.stores), 1, 1, 1)


class Compared:
    """Three ways to attend over a layer: as stored, over the rows that stand for it, over all."""

    def __init__(self, layer: Layer) -> None:
        """Build the launch and the rows."""
        full = layer.full
        heads, tokens, dim = full.k.shape
        self.queries, self.rule = layer.queries, full.rule
        readings = []
        for row, store in enumerate(layer.stores):
            tail = TailRows(full.k.new_zeros(2, heads, TAIL, dim))
            readings += list(_readings(row, store, tail, full.query_heads, heads))
        assert all(reads(reading.lane, reading.group) for reading in readings)
        self.launch = FlatLaunch(readings)
        self.out = torch.empty_like(self.queries)
        self.new = full.k[None, :, -1:].repeat(len(layer.stores), 1, 1, 1)
        self.at = np.full(len(layer.stores), tokens)
        self.counts = np.zeros(len(layer.stores), np.int64)
        self.rows = [
            [(band.k[None], band.v[None]) for band in store.materialize()] for store in layer.stores
        ]
        self.whole = [[(full.k[None], full.v[None])]] * len(layer.stores)

    def stored(self) -> None:
        """As the stores lie."""
        new = (self.new, self.new)
        self.launch.attend(self.queries, *new, self.at, self.counts, self.rule, self.out)

    def materialized(self) -> None:
        """Over the rows."""
        self._sdpa(self.rows)

    def fullkv(self) -> None:
        """Over all rows of every variant."""
        self._sdpa(self.whole)

    def _sdpa(self, rows: list[list[tuple[Tensor, Tensor]]]) -> None:
        for q, bands in zip(self.queries, rows, strict=True):
            share = len(q) // sum(k.shape[1] for k, _ in bands)
            first = 0
            for k, v in bands:
                heads = k.shape[1]
                some = q[first : first + heads * share].view(1, heads, share, -1)
                F.scaled_dot_product_attention(some, k, v, scale=self.rule.scaling)
                first += heads * share


def _readings(
    row: int, store: Store, tail: TailRows, query_heads: int, kv_heads: int
) -> Sequence[Reading]:
    """Who reads a store's lanes."""
    readings = []
    first = 0
    readers = query_heads // sum(len(lane[0].positions) for lane in store.segments())
    for lane in store.segments():
        reading = Reading(row, lane, first, readers, tail, query_heads // kv_heads)
        readings.append(reading)
        first += readers * reading.heads
    return readings


def measured(layers: Sequence[Layer], repeat: int) -> list[list[float]]:
    """Median CPU seconds of each layer: as stored, materialized, FullKV."""
    compared = [Compared(layer) for layer in layers]
    ways: list[Callable[[Compared], None]] = [
        Compared.stored,
        Compared.materialized,
        Compared.fullkv,
    ]
    seconds: list[list[list[float]]] = [[[] for _ in layers] for _ in ways]
    with torch.inference_mode():
        for _ in range(repeat + 1):
            for way, of_way in zip(ways, seconds, strict=True):
                # Layer after layer, as a step does: no layer finds its rows in a cache.
                for layer, of_layer in zip(compared, of_way, strict=True):
                    started = time.process_time()
                    way(layer)
                    of_layer.append(time.process_time() - started)
    return [[median(x[1:]) for x in of_way] for of_way in seconds]


def show(name: str, layers: Sequence[Layer], repeat: int) -> None:
    """Print one line of the table."""
    stored, rows, full = measured(layers, repeat)
    worst = max(x / y for x, y in zip(stored, rows, strict=True))
    times = " | ".join(f"{1e3 * sum(x):.2f}" for x in (stored, rows, full))
    of_full, of_rows = (sum(stored) / sum(x) for x in (full, rows))
    print(f"| {name} | {times} | {of_full:.2f} | {of_rows:.2f} | {worst:.2f} |", flush=True)


def batch(prefill: Prefill, variants: Sequence[Variant]) -> list[Layer]:
    """The layers of a batch of variants."""
    caches = [fitted_cache(variant, prefill).layers for variant in variants]
    return [Layer(layer, [cache[i] for cache in caches]) for i, layer in enumerate(prefill.layers)]


def rotate_halves(keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Llama's rotation of [B, H, n, D] keys."""
    x, y = keys.chunk(2, -1)
    return keys * cos[:, None] + torch.cat([-y, x], -1) * sin[:, None]


def random_layers(tokens: int, layers: int = 3) -> list[LayerState]:
    """An 8B model's shape: 32 query heads, 8 KV heads of 128; directions repeat three times."""
    rng = torch.Generator().manual_seed(0)
    heads, dim = 8, 128
    at = torch.arange(tokens)
    angles = at[:, None] * 500000.0 ** (-torch.arange(dim // 2) / (dim // 2))
    rotary = Rotary(
        RotaryTable(angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)), rotate_halves
    )
    made = []
    for index in range(layers):
        which = torch.randint(tokens // 3, (tokens,), generator=rng)
        k_pre, v = (
            torch.randn(heads, tokens // 3, dim, generator=rng)[:, which]
            * (0.5 + torch.rand(heads, tokens, 1, generator=rng))
            for _ in range(2)
        )
        made.append(
            LayerState(
                k=rotary.rotate(k_pre, at.expand(heads, -1)),
                v=v,
                q_win=torch.randn(4 * heads, 1, dim, generator=rng),
                rule=AttentionRule(dim**-0.5),
                k_pre=k_pre,
                rotary=rotary,
                index=index,
            )
        )
    return made


def random_stores(layer: LayerState) -> dict[str, list[Store]]:
    """Stores of each kind of a layer of random tensors; 0.4 of the tokens, drawn by chance."""
    rng = torch.Generator().manual_seed(layer.index)
    kept = [
        torch.rand(layer.query_heads, layer.tokens, generator=rng).topk(int(share * layer.tokens))
        for share in (0.4, *(0.04 * i for i in range(2, 18)))
    ]
    rows, *budgets = (found.indices.sort().values for found in kept)
    older = layer.tokens - layer.tokens % 32
    return {
        "plain rows": [store_whole(layer)],
        "rows per KV head": [store_rows(layer, rows[: layer.kv_heads])],
        "codebook": [store_codebook(layer, rows, 0, theta_key=0.98, theta_value=0.95)],
        "union": [store_rows(layer, rows, union=True)],
        **{
            f"quantized, {bits} bits": [store_quantized(layer, older, bits, 32)]
            for bits in (2, 4, 8)
        },
        "16 ragged variants": [
            store_ragged_rows(layer, [budgets[(i + head) % 16][head] for head in range(8)])
            for i in range(16)
        ],
    }


def main() -> None:
    """Print two Markdown tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=15, help="repetitions; medians are printed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with hydra.initialize_config_module("kvbench.conf", version_base="1.3"):
        model = load(planned([f"model={arguments.model}"]).model)
        variants = {name: planned(words).variants[-1:] for name, words in VARIANTS.items()}
        ragged = planned(RAGGED).variants[-16:]
    ids = prompt_ids(model, arguments.tokens)
    prefill = capture(model, ids, Needs(window=64, pre_rope_keys=True))
    machine = provenance.machine(model.devices)
    print(f"{machine['cpu']}, 1 thread, float32, torch {torch.__version__},", end=" ")
    print(f"{arguments.tokens} tokens, CPU ms of all layers, medians of {arguments.repeat}")
    header = "| stored | SDPA of its rows | FullKV | of FullKV | of its rows | worst layer |"
    print(f"\n| {arguments.model} {header}\n|---|---:|---:|---:|---:|---:|---:|")
    for name, some in variants.items():
        show(name, batch(prefill, some), arguments.repeat)
    show(f"{len(ragged)} ragged variants (adakv)", batch(prefill, ragged), arguments.repeat)
    print(f"\n| shape of an 8B model, 3 layers {header}\n|---|---:|---:|---:|---:|---:|---:|")
    shaped = random_layers(arguments.tokens)
    stores = [random_stores(layer) for layer in shaped]
    for name in stores[0]:
        of_name = [Layer(x, held[name]) for x, held in zip(shaped, stores, strict=True)]
        show(name, of_name, arguments.repeat)


if __name__ == "__main__":
    main()
