"""What decoding holds and what it costs: bytes claimed and held, tokens a second by width.

    python scripts/decode_cost.py --only memory --tokens 1024
    python scripts/decode_cost.py --only width --tokens 1024

On smollm2-135m, float32, one thread. Memory: every method of conf/method, what it claims after
compression and every tensor it holds at the end of an answer. Width: answers of one method over
several samples, which join the batch as others leave it, in tokens per CPU second of decoding.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import hydra
import torch
from compression_cost import planned, prompt_ids
from sweep_cost import Silent, any_sample

from kvbench.base import provenance
from kvbench.decode.greedy import Decoder, Stop, decode
from kvbench.model.loading import LoadedModel, load
from kvbench.plan.variant import Variant
from kvbench.run.caches import fitted_cache, schedule_of, shared_prefill
from kvbench.run.memory import bytes_to_take
from kvbench.run.sample import Limits, Work, evaluate


def memory(model: LoadedModel, tokens: int, new_tokens: int, budgets: Sequence[str]) -> None:
    """Print a Markdown table of claimed and held bytes as shares of the native cache."""
    choices = sorted(p.stem for p in Path(str(files("kvbench.conf") / "method")).glob("*.yaml"))
    words = [f"method={','.join(choices)}", f"budget={','.join(budgets)}"]
    ids = prompt_ids(model, tokens)
    sample = any_sample()
    print(f"{tokens} prompt tokens, {new_tokens} generated; shares of the native cache\n")
    print("| variant | claimed | held while decoding | of which the tail | read |")
    print("|---|---:|---:|---:|---|")
    for variant in planned(words).variants:
        schedule = schedule_of(model, tokens, variant)
        prefill = shared_prefill(model, ids, [variant], schedule, sample=sample)
        cache = fitted_cache(variant, prefill)
        native, claimed, logits = prefill.nbytes, cache.nbytes, prefill.last_logits
        del prefill
        caches = [cache]
        del cache
        stop = Stop(frozenset(), new_tokens)
        (written,) = decode(model, caches, tokens, stop, first_logits=logits)
        shares = (claimed / native, written.decode_bytes / native, written.tail_bytes / native)
        cells = " | ".join(f"{share:.3f}" for share in shares)
        print(f"| {variant.label} | {cells} | {written.reader} |", flush=True)


def widths(model: LoadedModel, tokens: int, new_tokens: int, samples: int) -> None:
    """Print tokens per CPU second of decoding, one method over several samples."""
    (variant,) = planned(["method=snapkv", "budget=0.2"]).variants[1:]
    print(f"{variant.label}, {samples} samples of {tokens} tokens, {new_tokens} generated each\n")
    print("| rows decoded together | tokens per CPU s |")
    print("|---:|---:|")
    ids = prompt_ids(model, tokens + samples)
    prompts = [tuple(ids[i : i + tokens].tolist()) for i in range(samples)]
    stop = Stop(frozenset(), new_tokens)
    for width in (1, 2, 4, 8, 16, 32):
        spent = decoding_seconds(model, prompts, stop, variant, width)
        print(f"| {width} | {samples * (new_tokens - 1) / spent:.0f} |", flush=True)


def decoding_seconds(
    model: LoadedModel,
    prompts: Sequence[tuple[int, ...]],
    stop: Stop,
    variant: Variant,
    width: int,
) -> float:
    """CPU seconds in the steps of the batch."""
    spent = 0.0
    step = Decoder.step

    def timed(decoder: Decoder) -> object:
        nonlocal spent
        started = time.process_time()
        ended = step(decoder)
        spent += time.process_time() - started
        return ended

    like = any_sample()
    works = [
        Work(replace(like, id=str(i)), prompt, (), stop, (variant,))
        for i, prompt in enumerate(prompts)
    ]
    Decoder.step = timed  # type: ignore[method-assign, assignment]
    try:
        done = list(evaluate(model, works, Limits(width, bytes_to_take(model)), Silent()))
    finally:
        Decoder.step = step  # type: ignore[method-assign]
    assert all(outcome.error is None for _, outcome in done), done
    return spent


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["memory", "width"])
    parser.add_argument("--tokens", type=int, default=1024, help="of each prompt")
    parser.add_argument("--new", type=int, default=64, help="tokens generated")
    parser.add_argument("--samples", type=int, default=16, help="for the widths")
    parser.add_argument("--budgets", default="0.2,0.5", help="for the memory")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with hydra.initialize_config_module("kvbench.conf", version_base="1.3"):
        model = load(planned([]).model)
        cpu = provenance.machine(model.devices)["cpu"]
        print(f"{model.spec.name}, {model.network.dtype}, {cpu}, 1 thread")
        if arguments.only in (None, "memory"):
            memory(model, arguments.tokens, arguments.new, arguments.budgets.split(","))
        if arguments.only in (None, "width"):
            widths(model, arguments.tokens, arguments.new, arguments.samples)


if __name__ == "__main__":
    main()
