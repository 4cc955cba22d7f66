"""Peak memory of a prefill beside its estimate, for everything that methods may ask of it.

    python scripts/prefill_memory.py --tokens 2048,8192,32768 --layers 2

Over a random Llama of SmolLM2-135M's shape, one thread. Measured is what torch's allocator handed
out at most beyond what was held before; the estimate is what a run reserves.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from kvbench.methods.kvzip import KVzip
from kvbench.model.loading import LoadedModel, ModelSpec, load
from kvbench.model.random import RandomShape
from kvbench.prefill.capture import capture
from kvbench.prefill.needs import Needs
from kvbench.run.memory import prefill_bytes

QUERY_HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCABULARY = 9, 3, 64, 1536, 49152

NEEDS = {
    "keys and values": Needs(),
    "window of 32": Needs(window=32),
    "keys before RoPE": Needs(window=32, pre_rope_keys=True),
    "column sums": Needs(column_sums=True),
    "last block's sums": Needs(last_block_sums=frozenset({8})),
    "query statistics": Needs(query_statistics=frozenset({4})),
    "reconstruction": KVzip().needs,
    "all but reconstruction": Needs(
        32, pre_rope_keys=True, column_sums=True, query_statistics=frozenset({4})
    ),
}


def most_allocated(work: Callable[[], object], device: torch.device) -> int:
    """Bytes that torch's allocator had handed out at most while the work was done."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        work()
    assert found.profiler is not None and found.profiler.kineto_results is not None
    events = [e for e in found.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return max(itertools.accumulate(event.nbytes() for event in events))


def model_of(
    layers: int,
    context: int,
    dtype: str = "float32",
    device: str = "cpu",
    vocabulary: int = VOCABULARY,
) -> LoadedModel:
    """A random Llama with SmolLM2-135M's layers."""
    shape = RandomShape(
        layers,
        QUERY_HEADS,
        KV_HEADS,
        HEAD_DIM,
        context=context,
        intermediate=INTERMEDIATE,
        vocabulary=vocabulary,
    )
    model = load(ModelSpec("random", "random", device=device, random=shape))
    model.network.to(getattr(torch, dtype))
    return model


def measured(model: LoadedModel, tokens: int, needs: Needs) -> int:
    """Bytes at the peak of one prefill."""
    ids = torch.randint(3, 259, (tokens,), generator=torch.Generator().manual_seed(tokens))
    return most_allocated(lambda: capture(model, ids, needs), model.device)


def main() -> None:
    """Print one row of Markdown per length and need."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", default="2048,8192", help="lengths, with commas")
    parser.add_argument("--needs", default=",".join(NEEDS), help="names, with commas")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lengths = [int(x) for x in arguments.tokens.split(",")]
    context = max(lengths) + 4096
    model = model_of(arguments.layers, context, arguments.dtype, arguments.device)
    print("| tokens | needs | estimate, MiB | measured, MiB | estimate / measured | s |")
    print("|---:|---|---:|---:|---:|---:|", flush=True)
    for tokens in lengths:
        for name in arguments.needs.split(","):
            started = time.perf_counter()
            most = measured(model, tokens, NEEDS[name])
            seconds = time.perf_counter() - started
            said = prefill_bytes(model, tokens, NEEDS[name]).total()
            sizes = f"{said / 2**20:.1f} | {most / 2**20:.1f} | {said / most:.3f}"
            print(f"| {tokens} | {name} | {sizes} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
