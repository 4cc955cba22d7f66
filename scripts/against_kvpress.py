"""CPU seconds of one sweep, kvpress 0.5.5 against kvbench: 4 methods x 4 budgets, 32 new tokens.

    python scripts/against_kvpress.py --kvpress kvpress-env/bin/python --tokens 1024,2048
    python scripts/against_kvpress.py --kvpress kvpress-env/bin/python --samples 16 --new 256

With --samples it is one method at one budget over so many prompts instead: what a plain evaluation
does, and where continuous batching counts.

kvpress runs in its own environment (scripts/kvpress_fixture.py says how to make it), a prefill for
each configuration, as its pipeline does. Both sides read the same model folder and the same prompt,
float32, on one thread; loading is not counted. The sides take turns; medians are compared. The
tokens that FullKV, StreamingLLM and SnapKV generate must be the same on both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

BUDGETS = (0.1, 0.2, 0.3, 0.5)
NEW_TOKENS = 32
PRESSES = {
    "streamingllm": ("StreamingLLMPress", {"n_sink": 4}),
    "snapkv_kvpress": ("SnapKVPress", {}),
    "knorm": ("KnormPress", {}),
    "tova": ("TOVAPress", {}),
}
"""kvbench's choice -> kvpress's class and settings; the conformance tests show the same rows."""
ONE_METHOD, ONE_BUDGET = "snapkv_kvpress", 0.2
SAME_TOKENS = ("fullkv", "streamingllm", "snapkv_kvpress")

Measured = dict[str, Any]
"""`seconds` of the 16 configurations, and `ids`: label -> generated token ids, FullKV's too."""


def kvpress_side(folder: str, prompts: list[list[int]], new_tokens: int, sweep: bool) -> Measured:
    """One prefill and one greedy generation for each configuration; needs kvpress alone.

    Args:
        folder: of the model.
        prompts: token ids; of a sweep just one.
        new_tokens: generated for each.
        sweep: every method and budget of the first prompt; else one of each, over all prompts.
    """
    import kvpress
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def generated(press: Any, ids: list[int]) -> list[int]:
        prompt = torch.tensor([ids])
        cache = DynamicCache()
        with torch.inference_mode():
            if press is None:
                output = model(input_ids=prompt, past_key_values=cache, logits_to_keep=1)
            else:
                with press(model):
                    output = model(input_ids=prompt, past_key_values=cache, logits_to_keep=1)
            found = [int(output.logits[0, -1].argmax())]
            for position in range(len(ids), len(ids) + new_tokens - 1):
                output = model(
                    input_ids=torch.tensor([[found[-1]]]),
                    past_key_values=cache,
                    position_ids=torch.tensor([[position]]),
                )
                found.append(int(output.logits[0, -1].argmax()))
        return found

    if not sweep:
        press, settings = PRESSES[ONE_METHOD]
        made = getattr(kvpress, press)(compression_ratio=1 - ONE_BUDGET, **settings)
        generated(made, prompts[0][:128])
        started = time.process_time()
        found = {str(i): generated(made, ids) for i, ids in enumerate(prompts)}
        return {"seconds": time.process_time() - started, "ids": found}
    found = {"fullkv": generated(None, prompts[0])}
    started = time.process_time()
    for name, (press, settings) in PRESSES.items():
        for budget in BUDGETS:
            made = getattr(kvpress, press)(compression_ratio=1 - budget, **settings)
            found[f"{name}@{budget}"] = generated(made, prompts[0])
    return {"seconds": time.process_time() - started, "ids": found}


def kvbench_side(
    model: Any, variants: Any, prompts: list[list[int]], new_tokens: int, sweep: bool
) -> Measured:
    """What `kvpress_side` does, as kvbench does it: one prefill a prompt, one batch for all."""
    from sweep_cost import Silent, any_sample

    from kvbench.decode.greedy import Stop
    from kvbench.run.loop import MOST_ROWS
    from kvbench.run.memory import bytes_to_take
    from kvbench.run.sample import Limits, Work, evaluate

    stop = Stop(frozenset(), new_tokens)
    like = any_sample()

    def outcomes(some: Any, texts: list[list[int]]) -> dict[str, list[int]]:
        works = [
            Work(replace(like, id=str(i)), tuple(ids), (), stop, tuple(some))
            for i, ids in enumerate(texts)
        ]
        width = len(some) if sweep else MOST_ROWS
        limits = Limits(width, bytes_to_take(model))
        done = list(evaluate(model, works, limits, Silent()))
        assert all(outcome.error is None for _, outcome in done), done
        return {
            outcome.variant.label if sweep else work.sample.id: list(outcome.generation.ids)
            for work, outcome in done
            if outcome.generation
        }

    if not sweep:
        one = [v for v in variants if v.label == f"{ONE_METHOD}@{ONE_BUDGET}"]
        outcomes(one, [prompts[0][:128]])
        started = time.process_time()
        found = outcomes(one, prompts)
        return {"seconds": time.process_time() - started, "ids": found}
    found = outcomes(variants[:1], prompts[:1])
    started = time.process_time()
    found |= outcomes(variants[1:], prompts[:1])
    return {"seconds": time.process_time() - started, "ids": found}


def in_kvpress(python: str, job: Mapping[str, Any]) -> Measured:
    """`kvpress_side` in its own environment."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(job, file)
        file.flush()
        command = [python, __file__, "--kvpress-side", file.name]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, env=environment
        )
    measured: Measured = json.loads(done.stdout)
    return measured


def compare(python: str, tokens: list[int], repeat: int, samples: int, new_tokens: int) -> bool:
    """Print both sides and their quotient; whether the tokens agree."""
    import torch
    from compression_cost import planned, prompt_ids
    from hydra import initialize_config_module

    from kvbench.base import provenance
    from kvbench.model.loading import load

    torch.set_num_threads(1)
    swept = [f"method={','.join(PRESSES)}", f"budget={','.join(map(str, BUDGETS))}"]
    with initialize_config_module("kvbench.conf", version_base="1.3"):
        plan = planned(["model=smollm2-135m", *swept])
    model = load(plan.model)
    folder = model.network.config._name_or_path
    print(
        f"{plan.model.name}, {model.network.dtype}, {provenance.machine()['cpu']}, 1 thread,"
    )
    sweep = not samples
    if sweep:
        print(f"{len(PRESSES)} methods x {len(BUDGETS)} budgets, {new_tokens} new tokens,")
    else:
        print(f"{ONE_METHOD}@{ONE_BUDGET} over {samples} prompts, {new_tokens} new tokens each,")
    print(f"medians of {repeat}; CPU seconds")
    agree = True
    for count in tokens:
        ids = prompt_ids(model, count + samples).tolist()
        prompts = [ids[i : i + count] for i in range(max(1, samples))]
        job = {"prompts": prompts, "new_tokens": new_tokens, "sweep": sweep}
        theirs, ours = [], []
        for _ in range(repeat):
            theirs.append(in_kvpress(python, {"folder": folder, **job}))
            ours.append(kvbench_side(model, plan.variants, **job))
        for label, mine in ours[0]["ids"].items():
            told = not sweep or label.split("@")[0] in SAME_TOKENS
            if told and mine != theirs[0]["ids"][label]:
                agree = False
                print(f"{label} generates other tokens")
        they, we = (median(m["seconds"] for m in side) for side in (theirs, ours))
        print(f"{count} tokens: kvpress {they:.1f}, kvbench {we:.1f}, quotient {they / we:.1f}")
    compared = "FullKV, StreamingLLM and SnapKV" if sweep else ONE_METHOD
    print(f"{compared}:", "the same tokens" if agree else "OTHER TOKENS")
    return agree


def main() -> None:
    """Compare, or be kvpress's side."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvpress", metavar="PYTHON", help="interpreter of kvpress's environment")
    parser.add_argument("--tokens", default="1024,2048", help="prompt lengths, with commas")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--samples", type=int, default=0, help="one method over so many prompts")
    parser.add_argument("--new", type=int, default=NEW_TOKENS, help="tokens generated")
    parser.add_argument("--kvpress-side", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.kvpress_side:
        job = json.loads(arguments.kvpress_side.read_text())
        print(json.dumps(kvpress_side(**job)))
        return
    if not arguments.kvpress:
        parser.error("give --kvpress PYTHON, the interpreter of kvpress's environment")
    tokens = [int(text) for text in arguments.tokens.split(",")]
    agree = compare(arguments.kvpress, tokens, arguments.repeat, arguments.samples, arguments.new)
    sys.exit(0 if agree else 1)


if __name__ == "__main__":
    main()
