"""Every method rehearsed for CUDA, on one device and on two: the same tokens, and nothing mixed.

`support.rehearsal` says what a rehearsal shows and what it can't. Cases that launch Triton's
kernels run in a process of their own, where its interpreter is chosen before it is imported:
`TRITON_INTERPRET=1 pytest -o python_functions='case_*' tests/run/test_rehearsal.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from kvbench.base.errors import UserError
from kvbench.compress.budget import Budget
from kvbench.compress.method import Method
from kvbench.data.source import open_source
from kvbench.decode import batch
from kvbench.decode.greedy import Decoder, Ended, Stop, continuation_logits
from kvbench.methods.adakv import AdaKV
from kvbench.methods.fullkv import FullKV
from kvbench.methods.quantized import Quantized
from kvbench.methods.snapkv import SnapKV
from kvbench.methods.spindlekv import SpindleKV
from kvbench.model.loading import LoadedModel, ModelSpec, load
from kvbench.model.random import RandomShape
from kvbench.model.rotary import Rotary
from kvbench.plan.variant import Variant
from kvbench.prefill.capture import capture
from kvbench.prefill.disk import PrefillCache, PrefillFolder
from kvbench.run.caches import fitted_cache
from kvbench.run.memory import Bytes, bytes_to_take
from kvbench.run.sample import Limits, Outcome, Work, evaluate
from kvbench.tasks.longbench import LongBench
from support.methods import CHOICES, METHODS
from support.rehearsal import Claimed, MixedDevices, claimed, rehearsing

SHAPE = RandomShape(layers=4, query_heads=4, kv_heads=2, head_dim=16, context=2048)
TOKENS = 110
BUDGETS = (0.2, 0.5)


class Silent:
    """Watches nothing."""

    def phase(self, name: str) -> None: ...

    def generated(self, tokens: int) -> None: ...


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load(ModelSpec("rehearsed", "random", device="cpu", dtype="float32", random=SHAPE))


def variants(choices: Sequence[str] = CHOICES) -> tuple[Variant, ...]:
    """Methods at two budgets, and SpindleKV so that it merges within a few tokens."""
    methods: dict[str, Method] = {choice: METHODS[choice] for choice in choices}
    if "spindlekv" in methods:
        methods["merging"] = SpindleKV(window=8, merge_every=3)
    return tuple(
        Variant(f"{name}@{budget}", name, method, {}, Budget(fraction=budget))
        for name, method in methods.items()
        for budget in BUDGETS
    )


def work(chosen: Sequence[Variant], new_tokens: int = 6, seed: int = 0, **changes: Any) -> Work:
    """One sample of random tokens, the last two fed after compression."""
    suite = LongBench(["narrativeqa"])
    (like, *_) = suite.samples(suite.tasks()[0], open_source("sample"))
    rng = torch.Generator().manual_seed(seed)
    ids = tuple(torch.randint(3, 250, (TOKENS,), generator=rng).tolist())
    sample = replace(like, id=str(seed), context=like.context + str(seed))
    return Work(sample, ids[:-2], ids[-2:], Stop(frozenset(), new_tokens), tuple(chosen), **changes)


def room(model: LoadedModel) -> Bytes:
    """Memory enough on every device."""
    return bytes_to_take(model, 2**34)


def outcomes(model: LoadedModel, works: Sequence[Work], width: int = 4) -> dict[str, Outcome]:
    found = {}
    for mine, outcome in evaluate(model, works, Limits(width, room(model)), Silent()):
        found[f"{outcome.variant.label} of {mine.sample.id}"] = outcome
    return found


def answers(found: dict[str, Outcome]) -> dict[str, Any]:
    """Label -> generated ids, or what went wrong."""
    return {
        label: outcome.error if outcome.generation is None else outcome.generation.ids
        for label, outcome in found.items()
    }


@pytest.fixture(scope="module")
def on_the_cpu(model: LoadedModel) -> Iterator[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "_kernels", lambda device: None)
        yield answers(outcomes(model, [work(variants())]))


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_no_method_mixes_devices(
    model: LoadedModel, on_the_cpu: dict[str, Any], devices: int
) -> None:
    with rehearsing() as rehearsal, claimed(model, devices) as there:
        found = answers(outcomes(there, [work(variants())]))
    assert found == on_the_cpu
    assert rehearsal.counts["launches"] > 1000
    assert (rehearsal.counts["moved"] > 0) == (devices > 1)


QUICK = ("snapkv", "streamingllm_official", "quantized", "expected_attention")


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "_kernels", lambda device: None)


def test_a_planted_mixture_is_found(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, no_kernels: None
) -> None:
    """Keys that are rotated on the first device, whatever layer they are of."""
    rotate = Rotary.rotate
    monkeypatch.setattr(
        Rotary, "rotate", lambda self, k, at: rotate(self, k, at).to("cuda:0"), raising=True
    )
    chosen = variants(["streamingllm_official"])
    with rehearsing(), claimed(model, 1) as there:
        fine = answers(outcomes(there, [work(chosen)]))
    with rehearsing(), claimed(model, 2) as there:
        found = answers(outcomes(there, [work(chosen)]))
    assert not any(isinstance(answer, str) for answer in fine.values())
    assert all("MixedDevices" in answer for answer in found.values())


def test_what_cuda_refuses_is_refused() -> None:
    with rehearsing() as rehearsal, torch.inference_mode():
        here, there, further = torch.ones(3), torch.ones(3).to("cuda:0"), torch.ones(3).to("cuda:1")
        at = torch.tensor([0, 2], device="cuda:1")
        for mix in (
            lambda: here + there,
            lambda: torch.cat([there, further]),
            lambda: there[at],
            lambda: here[at],
            lambda: torch.where(there > 0, there, here),
            lambda: there.index_copy_(0, at, further[:2]),
            lambda: there @ here,
        ):
            with pytest.raises(MixedDevices):
                mix()
        assert isinstance(there + torch.tensor(2.0), Claimed), "a number may lie on the CPU"
        assert (there[torch.tensor([2])] + 1).device == torch.device("cuda", 0)
        assert (there.to("cuda:1") + further).tolist() == [2, 2, 2]
        with pytest.raises(TypeError, match="convert"):
            there.numpy()
        before = rehearsal.counts.copy()
        there.view(3, 1)[1:].T.expand(2, 2)
        assert rehearsal.counts == before, "views cost nothing"
        assert there.sum().item() == 3
        assert (rehearsal.counts - before) == Counter(launches=1, waits=1)


def test_prefills_from_disk_lie_where_their_layers_do(
    model: LoadedModel, tmp_path: Path, no_kernels: None
) -> None:
    chosen = variants(QUICK)
    expected = answers(outcomes(model, [work(chosen)]))
    take = PrefillCache(PrefillFolder(tmp_path, 2**30)).capture
    with rehearsing(), claimed(model, 2) as there:
        for _ in range(2):
            limits = Limits(4, room(there))
            found = {
                f"{outcome.variant.label} of 0": outcome
                for _, outcome in evaluate(there, [work(chosen)], limits, Silent(), take)
            }
            assert answers(found) == expected
            assert len(list(tmp_path.glob("*.safetensors"))) == 1


@pytest.mark.parametrize("devices", [1, 2])
def test_continuations_mix_nothing(model: LoadedModel, devices: int, no_kernels: None) -> None:
    feeds = [(5, 6, 7), (9,), (11, 12)]

    def logits(model: LoadedModel) -> list[torch.Tensor]:
        ids = torch.tensor(work(()).head)
        prefill = capture(model, ids, METHODS["streamingllm_official"].needs)
        some = variants(["streamingllm_official", "snapkv"])
        caches = [fitted_cache(variant, prefill) for variant in some[:3]]
        return [x.cpu() for x in continuation_logits(model, caches, len(ids), feeds)]

    with rehearsing(), claimed(model, devices) as there:
        found = logits(there)
    for mine, expected in zip(found, logits(model), strict=True):
        torch.testing.assert_close(mine, expected)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_every_case_passes() -> None:
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "python_functions=case_*"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *words, __file__],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]


LAUNCHES_OF_TRANSFORMERS = 47
"""Operations a layer and step of transformers' own generation with a cache, counted likewise."""
SERVED = {
    "fullkv": FullKV(),
    "snapkv": SnapKV(window=8),
    "adakv": AdaKV(),
    "query heads": SnapKV(window=8, heads="query"),
    "spindlekv": SpindleKV(window=8, merge_every=0),
    "quantized": Quantized(),
}


SMALL = RandomShape(layers=2, query_heads=4, kv_heads=2, head_dim=16, context=256)


@pytest.fixture(scope="module")
def small() -> LoadedModel:
    """Triton's interpreter takes milliseconds a program."""
    return load(ModelSpec("small", "random", device="cpu", dtype="float32", random=SMALL))


def steps(
    model: LoadedModel, methods: Sequence[Method], samples: int = 1, tokens: int = 5
) -> list[Counter[str]]:
    """What each step costs after all rows have joined."""
    counts = []
    needs = SERVED["spindlekv"].needs | SERVED["adakv"].needs
    with rehearsing() as rehearsal, claimed(model) as there:
        caches = []
        for seed in range(samples):
            prefill = capture(there, torch.tensor(work((), seed=seed).head[:24]), needs)
            for method in methods:
                variant = Variant("x", "x", method, {}, Budget(fraction=0.6))
                caches.append((fitted_cache(variant, prefill), prefill.last_logits))
        decoder = Decoder(there, len(caches))
        for cache, logits in caches:
            stop = Stop(frozenset({3}), tokens + 1, min_new_tokens=tokens)
            decoder.add(cache, 24, stop, first_logits=logits)
        ended: list[Ended] = []
        while not ended:
            with rehearsal.counting() as found:
                ended = decoder.step()
            counts.append(found)
        assert all(x.generation and "triton" in x.generation.reader for x in ended)
    return counts


def case_launches_and_waits_do_not_grow(small: LoadedModel) -> None:
    bare = steps(small, [SERVED["fullkv"]])[1]["launches"]
    assert bare <= LAUNCHES_OF_TRANSFORMERS * SMALL.layers
    for methods, samples in (
        ([SERVED["snapkv"]] * 2, 1),
        ([SERVED["snapkv"]] * 9, 1),
        ([SERVED["adakv"]] * 3, 1),
        (list(SERVED.values()), 1),
        ([SERVED["snapkv"], SERVED["adakv"]], 2),
    ):
        first, *others = steps(small, methods, samples)
        assert first["waits"] <= 1
        for step in others[:-1]:
            assert (step["waits"], step["sent"]) == (1, 0), step
            assert step["launches"] == bare, step


def case_tails_that_grow_send_tables_and_wait_for_nothing(small: LoadedModel) -> None:
    growing = steps(small, [SERVED["snapkv"]] * 2, tokens=18)[16]
    bare = steps(small, [SERVED["snapkv"]] * 2)[1]
    assert growing["waits"] == 1
    assert growing["sent"] == SMALL.layers, "where the tails lie, for each layer"
    assert growing["launches"] - bare["launches"] == 2, "one copy for all layers of each row"


def case_a_recorded_step_says_the_same(small: LoadedModel) -> None:
    """Rows of several samples that end at different tokens, and what cannot be recorded."""
    chosen = variants(["snapkv", "quantized", "streamingllm_official"])[::2]
    whole = [work(chosen, new_tokens=5 + 3 * seed, seed=seed) for seed in range(2)]
    works = [replace(mine, head=mine.head[:24]) for mine in whole]
    with rehearsing() as rehearsal, claimed(small) as there:
        expected = answers(outcomes(there, works))
        before = rehearsal.by_name["launches replay"]
        found = {}
        for mine, outcome in evaluate(there, works, Limits(4, room(there), graph=True), Silent()):
            found[f"{outcome.variant.label} of {mine.sample.id}"] = outcome
    assert rehearsal.by_name["launches replay"] - before >= 4
    for label, answer in answers(found).items():
        if label.startswith("streamingllm_official"):
            assert "it takes tokens in while decoding" in answer
        else:
            assert answer == expected[label]


def test_graphs_are_refused_where_none_are_recorded(model: LoadedModel) -> None:
    with pytest.raises(UserError, match=r"decode.graph=true: .* lies on cpu, and only CUDA"):
        Decoder(model, 1, graph=True)
    with rehearsing(), claimed(model, 2) as there, pytest.raises(UserError, match="one device"):
        Decoder(there, 1, graph=True)
