"""Peak memory of prefill, compression and decoding: a method against FullKV.

    python scripts/peak_memory.py --budget 0.2 --tokens 8192

Each run is a process of its own on the CPU, over a random float32 Llama whose full cache is large
beside its weights. The quotient is of peak resident memory; the one above the loaded model leaves
out Python, torch and the weights, which are the same in both.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

LAYERS, HEADS, HEAD_DIM, NEW_TOKENS = 4, 8, 64, 16
FULLKV = "kvbench.methods.fullkv.FullKV"


def resident_mib(field: str) -> float:
    """A field of /proc/self/status in MiB: VmHWM (peak) or VmRSS (now).

    Not getrusage, whose peak a process inherits from the one that started it.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"/proc/self/status has no {field}: this script needs Linux")


def measure(method: str, budget: str, tokens: int) -> dict[str, float]:
    """MiB of one run in this process: after loading, and at its peak."""
    import torch

    from kvbench.compress.budget import Budget
    from kvbench.decode.greedy import Stop, decode
    from kvbench.model.loading import ModelSpec, load
    from kvbench.model.random import RandomShape
    from kvbench.prefill.capture import capture

    torch.set_num_threads(2)
    shape = RandomShape(LAYERS, HEADS, HEADS, HEAD_DIM, context=tokens + NEW_TOKENS)
    model = load(ModelSpec("random", "random", device="cpu", random=shape))
    module, _, name = method.rpartition(".")
    chosen = getattr(importlib.import_module(module), name)()
    ids = torch.arange(tokens) % 256
    capture(model, ids[:16], chosen.needs)  # kernels and thread pools are not the method's
    loaded = resident_mib("VmRSS")
    prefill = capture(model, ids, chosen.needs)
    caches = [chosen.compress(prefill, Budget.parse(json.loads(budget)))]
    native = prefill.nbytes / 2**20
    stop = Stop(frozenset(), NEW_TOKENS)
    decode(model, caches, tokens, stop, first_logits=prefill.last_logits)
    return {"loaded_mib": loaded, "peak_mib": resident_mib("VmHWM"), "native_mib": native}


def in_a_process(method: str, arguments: argparse.Namespace) -> dict[str, float]:
    """`measure` in a fresh process."""
    words = ["--measure", method, "--budget", arguments.budget, "--tokens", str(arguments.tokens)]
    command = [sys.executable, __file__, *words]
    # One arena and a fixed threshold: what is freed goes back at once, whatever the threads did,
    # so that the peak is what was held and not what the allocator kept for later.
    allocator = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **allocator}
    )
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def main() -> None:
    """Measure both and print the quotients."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="kvbench.methods.snapkv.SnapKV", help="dotted class")
    parser.add_argument("--budget", default="0.2")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.budget, arguments.tokens)))
        return
    full, method = (in_a_process(name, arguments) for name in (FULLKV, arguments.method))
    found = {
        "tokens": arguments.tokens,
        "native_cache_mib": round(full["native_mib"]),
        "fullkv_peak_above_model_mib": round(full["peak_mib"] - full["loaded_mib"]),
        "fullkv_peak_mib": round(full["peak_mib"]),
        "method_peak_mib": round(method["peak_mib"]),
        "peak_quotient": round(method["peak_mib"] / full["peak_mib"], 3),
        "peak_quotient_above_model": round(
            (method["peak_mib"] - method["loaded_mib"]) / (full["peak_mib"] - full["loaded_mib"]), 3
        ),
    }
    if arguments.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:28} {value}")


if __name__ == "__main__":
    main()
