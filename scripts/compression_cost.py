"""What compressing costs beside the prefill that it follows: CPU seconds, every method.

    python scripts/compression_cost.py --tokens 2048,8192

Each repetition prefills one prompt plainly, once for every distinct set of captured needs (windows
of any length count as one: keeping a few queries costs nothing that could be measured), and once
for every pruning prefill, then compresses for each method at each budget. A method's cost is what
its capture took beyond the plain prefill plus its compression, over the plain prefill. Where the
bytes follow the data, the search for the budget compresses several times; the table says how often,
and what once costs. Each budget is measured as if it were the only one; with `--sweep` each finds
what those before it left in the prefill's memo. Medians, CPU seconds of one thread. The prompt is
the prose that ships for needles, cut to the number of tokens.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TypeVar

import hydra
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from torch import Tensor

from kvbench.base import provenance
from kvbench.classifier.trained import LOCALISATION
from kvbench.compress.budget import Budget
from kvbench.compress.fit import fit_budget
from kvbench.compress.method import Method
from kvbench.config.catalog import stated_methods
from kvbench.config.planning import plan_from_config
from kvbench.config.sweeper import folded_jobs
from kvbench.model.loading import LoadedModel, load
from kvbench.plan.plan import Plan
from kvbench.prefill.capture import capture
from kvbench.prefill.needs import Needs
from kvbench.prefill.pruning import PruningSchedule
from kvbench.tasks.haystack import SAMPLE_HAYSTACK

T = TypeVar("T")
Capture = tuple[Needs, PruningSchedule | None]
PLAIN: Capture = (Needs(), None)
"""The prefill that keeps keys and values only."""

WINDOW = 64
"""Queries captured for every method that reads a window; none reads more."""


@dataclass(frozen=True)
class Cost:
    """One line of the table; CPU seconds."""

    method: str
    budget: Budget
    capture_s: float
    """What the method's own capture took beyond the plain prefill."""
    compress_s: float
    """The search for the budget included."""
    evaluations: int
    """Compressions of that search; 1 without one."""
    prefill_s: float

    @property
    def share(self) -> float:
        """Of the plain prefill."""
        return (self.capture_s + self.compress_s) / self.prefill_s

    @property
    def share_of_one(self) -> float:
        """Of the plain prefill, one compression instead of the search."""
        return (self.capture_s + self.compress_s / self.evaluations) / self.prefill_s


def cpu_seconds(work: Callable[[], T]) -> tuple[T, float]:
    """What `work` returns and the CPU seconds it took."""
    started = time.process_time()
    result = work()
    return result, time.process_time() - started


def prompt_ids(model: LoadedModel, tokens: int) -> Tensor:
    """[tokens] ids of the prose that ships for needles, which does not repeat itself."""
    text = (SAMPLE_HAYSTACK / "everyday.txt").read_text("utf-8")
    ids = model.tokenizer.encode(text, add_special_tokens=False, verbose=False)
    return torch.tensor(ids * (tokens // len(ids) + 1))[:tokens]


def costs(
    model: LoadedModel,
    ids: Tensor,
    methods: Mapping[str, Method],
    budgets: Sequence[Budget],
    repeat: int,
    sweep: bool,
) -> list[Cost]:
    """Medians of `repeat` repetitions, in the order of `methods`."""
    sharing: dict[Capture, list[tuple[str, Budget]]] = {PLAIN: []}
    for name, method in methods.items():
        for budget in budgets:
            plan = method.pruning_schedule(len(ids), model.geometry.layers, budget)
            sharing.setdefault((_captured(method.needs), plan), []).append((name, budget))
    types = {name: LOCALISATION for method in methods.values() for name in method.needs.classifiers}
    evaluations: dict[tuple[str, Budget], int] = {}
    captured: dict[Capture, list[float]] = defaultdict(list)
    compressed: dict[tuple[str, Budget], list[float]] = defaultdict(list)
    for _ in range(repeat):
        for needed, users in sharing.items():
            prefill, seconds = cpu_seconds(partial(capture, model, ids, *needed))
            captured[needed].append(seconds)
            prefill = replace(prefill, task_types=types)
            for name, budget in users:
                if not sweep:  # copies of the layers begin with an empty memo
                    prefill = replace(prefill, layers=tuple(map(replace, prefill.layers)))
                with torch.inference_mode():
                    fitting = partial(fit_budget, methods[name], prefill, budget)
                    cache, seconds = cpu_seconds(fitting)
                compressed[name, budget].append(seconds)
                evaluations[name, budget] = cache.facts.get("evaluations", 1)
            del prefill
    plain = median(captured[PLAIN])
    found = {
        (name, budget): Cost(
            name,
            budget,
            median(captured[needed]) - plain,
            median(compressed[name, budget]),
            evaluations[name, budget],
            plain,
        )
        for needed, users in sharing.items()
        for name, budget in users
    }
    return [found[name, budget] for name in methods for budget in budgets]


def _captured(needs: Needs) -> Needs:
    """What a capture is distinguished by: one window for all, no classifiers, which run apart."""
    return replace(needs, window=WINDOW * (needs.window > 0), classifiers=frozenset())


def planned(words: list[str]) -> Plan:
    """The plan of a command line of one job, with Hydra initialized."""
    (job,) = folded_jobs(OverridesParser.create().parse_overrides(words))
    return plan_from_config(hydra.compose("config", job), job)


def main() -> None:
    """Print a Markdown table for each prompt length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", default="2048,8192", help="prompt lengths, with commas")
    parser.add_argument("--methods", help="with commas; default: each method's own YAML")
    parser.add_argument("--budgets", default="0.2,0.4", help="with commas")
    parser.add_argument("--repeat", type=int, default=3, help="repetitions; medians are printed")
    parser.add_argument("--sweep", action="store_true", help="budgets share a prefill's memo")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    chosen = arguments.methods.split(",") if arguments.methods else stated_methods()
    with hydra.initialize_config_module("kvbench.conf", version_base="1.3"):
        model = load(planned([f"model={arguments.model}"]).model)
        methods = {name: planned([f"method={name}"]).variants[-1].method for name in chosen}
    budgets = [Budget.parse(float(text)) for text in arguments.budgets.split(",")]
    machine = provenance.machine(model.devices)
    print(f"{arguments.model}, {model.network.dtype}, {machine['cpu']}, 1 thread,", end=" ")
    print(f"torch {torch.__version__}, medians of {arguments.repeat}")
    for tokens in map(int, arguments.tokens.split(",")):
        ids = prompt_ids(model, tokens)
        found = costs(model, ids, methods, budgets, arguments.repeat, arguments.sweep)
        print(f"\n{tokens} tokens: plain prefill {found[0].prefill_s:.2f} CPU s\n")
        print("| method | budget | capture, s | compress, s | times | of the prefill | once |")
        print("|---|---:|---:|---:|---:|---:|---:|")
        for cost in found:
            seconds = f"{cost.capture_s:.3f} | {cost.compress_s:.3f} | {cost.evaluations}"
            shares = f"{cost.share:.1%} | {cost.share_of_one:.1%}"
            print(f"| {cost.method} | {cost.budget} | {seconds} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
