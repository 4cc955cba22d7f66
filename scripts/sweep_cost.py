"""What a sweep costs beside the model's own work: the harness, planning, and one more variant.

    python scripts/sweep_cost.py

Three quotients on smollm2-135m, float32, one thread, medians of several runs:
- one more variant: CPU seconds that each of 16 variants adds to a run of one, over that run (a
  prefill of 2048 tokens, 32 generated), the methods one by one and all together;
- the harness: of a run of three samples and 17 variants, the seconds that are not prefill,
  compression or decoding as its own records state them, over all seconds; loading the model is in
  neither;
- planning: seconds from the words to the list of what is missing, 100 000 results.

`--only` measures one of them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import hydra
import torch
from compression_cost import cpu_seconds, planned, prompt_ids
from torch import Tensor

from kvbench.api import run_words
from kvbench.base import provenance
from kvbench.data.source import open_source
from kvbench.decode.greedy import Stop
from kvbench.model.loading import LoadedModel, load
from kvbench.plan.variant import Variant
from kvbench.records.reader import distinct, read_shards
from kvbench.run.loop import missing_results
from kvbench.run.memory import bytes_to_take
from kvbench.run.sample import Limits, Work, evaluate
from kvbench.tasks.longbench import LongBench
from kvbench.tasks.task import Sample

METHODS = ("streamingllm", "snapkv", "knorm", "tova")
BUDGETS = "budget=0.1,0.2,0.3,0.5"
PROMPT_TOKENS, NEW_TOKENS = 2048, 32
RESULTS = 100_000


class Silent:
    """Shows nothing of what runs."""

    def phase(self, name: str) -> None:
        """Say nothing."""

    def generated(self, tokens: int) -> None:
        """Say nothing."""


def any_sample() -> Sample:
    """A sample, for what is measured without looking at it."""
    suite = LongBench(["narrativeqa"])
    return next(suite.samples(suite.tasks()[0], open_source("sample")))


def evaluation(
    model: LoadedModel, ids: Tensor, variants: Sequence[Variant]
) -> Callable[[], object]:
    """One prefill, compression and decoding of these variants, ready to be called."""
    stop = Stop(frozenset(), NEW_TOKENS)
    head = tuple(ids.tolist())
    work = Work(any_sample(), head, (), stop, tuple(variants))
    limits = Limits(len(variants), bytes_to_take(model))
    return lambda: list(evaluate(model, [work], limits, Silent()))


def marginal_costs(model: LoadedModel, repeat: int) -> None:
    """Print what one more variant adds to a run of one."""
    ids = prompt_ids(model, PROMPT_TOKENS)
    words = [f"method={','.join(METHODS)}", BUDGETS]
    variants = planned(words).variants[1:]
    alone, many = [], []
    for _ in range(repeat):
        alone.append(cpu_seconds(evaluation(model, ids, variants[:1]))[1])
        many.append(cpu_seconds(evaluation(model, ids, variants))[1])
    one, all_of_them = median(alone), median(many)
    share = (all_of_them - one) / (len(variants) - 1) / one
    print(f"one more variant: {one:.2f} CPU s for one, {all_of_them:.2f} for {len(variants)}:")
    print(f"  {share:.1%} of a single run each ({', '.join(METHODS)})")


def harness_overhead(repeat: int) -> None:
    """Print the share of a run that is not the model's work."""
    shares = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            words = ["task=qasper", "limit=3", f"out={folder}/run"]
            started = time.perf_counter()
            with contextlib.redirect_stdout(io.StringIO()):
                run_words([f"method={','.join(METHODS)}", BUDGETS, *words])
            seconds = time.perf_counter() - started
            records = [record for _, record in distinct(read_shards(Path(folder, "run")))]
        work = sum(capture_s or 0 for _, capture_s in {(r.sample, r.capture_s) for r in records})
        work += sum((r.compress_s or 0) + (r.decode_s or 0) for r in records)
        shares.append((seconds - work) / seconds)
    print(f"the harness: {median(shares):.1%} of a run of {len(records)} results")


def planning(repeat: int) -> None:
    """Print the seconds that planning a large grid takes."""
    methods = "fullkv,streamingllm,h2o,snapkv,pyramidkv,spindlekv,windowkv,kvcrush,knorm,tova"
    words = [f"method={methods}", "budget=0.1,0.2,0.3,0.4,0.5"]
    like = any_sample()
    seconds = []
    for _ in range(repeat):
        started = time.perf_counter()
        with hydra.initialize_config_module("kvbench.conf", version_base="1.3"):
            plan = planned(words)
        count = RESULTS // len(plan.variants) + 1
        # As read from a file: each with a text of its own, and not yet hashed.
        samples = [Sample(like.task, f"{i}", like.context * 4, "", ()) for i in range(count)]
        todo, _ = missing_results(plan, samples, set(), set())
        seconds.append(time.perf_counter() - started)
        found = sum(len(variants) for _, variants in todo)
    print(f"planning {found} results: {median(seconds):.2f} s")


def main() -> None:
    """Print all three."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3, help="runs; medians are printed")
    parser.add_argument("--only", choices=["variant", "planning", "harness"])
    arguments = parser.parse_args()
    repeat, only = arguments.repeat, arguments.only
    torch.set_num_threads(1)
    with hydra.initialize_config_module("kvbench.conf", version_base="1.3"):
        model = load(planned([]).model)
        cpu = provenance.machine(model.devices)["cpu"]
        print(f"{model.spec.name}, {model.network.dtype}, {cpu}, 1 thread, medians of {repeat}")
        if only in (None, "variant"):
            marginal_costs(model, repeat)
    if only in (None, "planning"):
        planning(repeat)
    if only in (None, "harness"):
        harness_overhead(repeat)


if __name__ == "__main__":
    main()
