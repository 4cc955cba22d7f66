"""Several samples in one batch: the same tokens whoever fills the slots."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from kvbench.cache.codebook import CodebookStore
from kvbench.compress.budget import Budget
from kvbench.compress.method import Method
from kvbench.data.source import open_source
from kvbench.decode.greedy import Decoder, Stop
from kvbench.methods.adakv import AdaKV
from kvbench.methods.fullkv import FullKV
from kvbench.methods.h2o import H2O
from kvbench.methods.quantized import Quantized
from kvbench.methods.snapkv import SnapKV
from kvbench.methods.spindlekv import SpindleKV
from kvbench.model.loading import LoadedModel, wrap
from kvbench.plan.variant import Variant
from kvbench.run.memory import Bytes
from kvbench.run.sample import Limits, Outcome, Work, evaluate
from kvbench.tasks.longbench import LongBench
from kvbench.tasks.task import Sample

METHODS: dict[str, tuple[Method, float]] = {
    "fullkv": (FullKV(), 1.0),
    "snapkv": (SnapKV(window=8), 0.3),
    "adakv": (AdaKV(), 0.4),
    "spindlekv": (SpindleKV(window=8, merge_every=5), 0.5),
    "quantized": (Quantized(), 0.6),
    "h2o": (H2O(during_decode=True, heads="query"), 0.3),
}
VARIANTS = tuple(
    Variant(name, name, method, {}, Budget(fraction=share))
    for name, (method, share) in METHODS.items()
)
ROOM = 2**34


class Heard:
    """What a watcher was told."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.tokens = 0

    def phase(self, name: str) -> None:
        self.phases.append(name)

    def generated(self, tokens: int) -> None:
        self.tokens += tokens


@pytest.fixture(scope="module")
def works() -> list[Work]:
    """Five samples of different lengths, some with tokens to feed, that end at different tokens."""
    suite = LongBench(["narrativeqa"])
    (like, *_) = suite.samples(suite.tasks()[0], open_source("sample"))
    made = []
    for i, tokens in enumerate((97, 130, 64, 181, 75)):
        rng = torch.Generator().manual_seed(i)
        ids = tuple(torch.randint(3, 250, (tokens,), generator=rng).tolist())
        feed = ids[len(ids) - (0, 1, 0, 4, 0)[i] :] if i in (1, 3) else ()
        stop = Stop(frozenset({10 + 40 * i}), 12 + 5 * i)
        sample = Sample(like.task, str(i), like.context + str(i), "", ())
        made.append(Work(sample, ids[: len(ids) - len(feed)], feed, stop, VARIANTS))
    return made


def outcomes(
    model: LoadedModel, works: Sequence[Work], width: int, memory: int = ROOM, **changes: Any
) -> dict[tuple[str, str], Outcome]:
    """Sample and variant -> what it came to."""
    limits = Limits(width, Bytes({model.device: memory}), **changes)
    found: dict[tuple[str, str], Outcome] = {}
    for work, outcome in evaluate(model, works, limits, Heard()):
        key = (work.sample.id, outcome.variant.label)
        assert key not in found, "each once"
        found[key] = outcome
    return found


def tokens(found: dict[tuple[str, str], Outcome]) -> dict[tuple[str, str], tuple[int, ...]]:
    """Sample and variant -> ids generated."""
    assert all(outcome.error is None for outcome in found.values()), found
    return {key: o.generation.ids for key, o in found.items() if o.generation is not None}


def test_the_order_in_which_slots_fill_changes_no_token(
    tiny: LoadedModel, works: list[Work]
) -> None:
    expected = tokens(outcomes(tiny, works, 4))
    assert len(expected) == len(works) * len(VARIANTS)
    assert len({len(ids) for ids in expected.values()}) > 3, "rows end at different steps"
    for order in ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        assert tokens(outcomes(tiny, [works[i] for i in order], 4)) == expected
    # As after a kill: what is left runs in other company.
    left = outcomes(tiny, [works[3], works[1]], 4)
    assert tokens(left).items() <= expected.items()


def test_a_batch_of_any_width_says_what_each_row_says_alone(
    tiny: LoadedModel, works: list[Work]
) -> None:
    together = tokens(outcomes(tiny, works, 7))
    for work in works[:2]:
        for variant in VARIANTS:
            (alone,) = outcomes(tiny, [replace(work, variants=(variant,))], 1).values()
            assert alone.generation is not None
            assert alone.generation.ids == together[work.sample.id, variant.label]


def test_rebuilt_rows_say_what_is_read_as_stored(tiny: LoadedModel, works: list[Work]) -> None:
    stored, rebuilt = (outcomes(tiny, works[:3], 5, as_stored=x) for x in (True, False))
    assert tokens(stored) == tokens(rebuilt)
    readers = {o.generation.reader.split(" (")[0] for o in stored.values() if o.generation}
    assert readers == {"rows", "codebook", "quantized", "union"}
    assert all(
        o.generation.reader.startswith("rebuilt rows") for o in rebuilt.values() if o.generation
    )
    for key, outcome in stored.items():
        if key[1] in ("spindlekv", "quantized"):
            assert outcome.generation.decode_bytes < rebuilt[key].generation.decode_bytes


def test_memory_bounds_what_is_alive_at_once_and_changes_no_token(
    tiny: LoadedModel, works: list[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0
    step = Decoder.step

    def watched(decoder: Decoder) -> Any:
        nonlocal most
        most = max(most, decoder.nbytes)
        return step(decoder)

    monkeypatch.setattr(Decoder, "step", watched)
    # H2O's column sums take more in the prefill of such small rows than all the rows do.
    works = [replace(w, variants=tuple(v for v in VARIANTS if v.choice != "h2o")) for w in works]
    expected = tokens(outcomes(tiny, works, 30))
    wide, most = most, 0
    bound = 900_000
    assert tokens(outcomes(tiny, works, 30, bound)) == expected
    assert most < bound < wide


def test_a_store_that_fails_costs_its_row(
    tiny: LoadedModel, works: list[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tokens(outcomes(tiny, works, 6))
    absorb, calls = CodebookStore.absorb, [0]

    def failing(store: CodebookStore, tail: Any) -> CodebookStore:
        calls[0] += 1
        if calls[0] == 5:
            raise RuntimeError("planted")
        return absorb(store, tail)

    monkeypatch.setattr(CodebookStore, "absorb", failing)
    found = outcomes(tiny, works, 6)
    failed = {key: o.error for key, o in found.items() if o.error is not None}
    assert len(failed) == 1
    ((_, label), told) = failed.popitem()
    assert label == "spindlekv@0.5" and "decode of" in told and "planted" in told
    others = {key: o for key, o in found.items() if o.error is None}
    assert tokens(others).items() <= expected.items()


def test_memory_that_runs_out_costs_the_newest_sample(
    tiny: LoadedModel, works: list[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = tokens(outcomes(tiny, works, 8))
    calls = [0]

    def short(module: Any, args: Any, kwargs: Any) -> None:
        if kwargs["input_ids"].shape[0] == 8:
            calls[0] += 1
            if calls[0] == 4:
                raise torch.OutOfMemoryError("planted")

    # In the middle of a step: the layers before have written their rows already.
    layer = tiny.network.model.layers[1]
    handle = layer.register_forward_pre_hook(
        lambda m, a, k: short(m, a, {"input_ids": a[0]}), with_kwargs=True
    )
    try:
        found = outcomes(tiny, works, 8)
    finally:
        handle.remove()
    failed = {key for key, o in found.items() if o.error is not None}
    assert failed and len({sample for sample, _ in failed}) == 1, "one sample"
    assert all("out of memory: planted" in str(found[key].error) for key in failed)
    others = {key: o for key, o in found.items() if key not in failed}
    assert tokens(others).items() <= expected.items()


def test_a_time_ends_when_every_device_is_done(
    tiny: LoadedModel, works: list[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: time.sleep(0.02))
    model = wrap(tiny.network, tiny.tokenizer, tiny.spec, tiny.identity)
    gpus = tuple(torch.device("cuda", i) for i in (0, 0, 1))
    model.__dict__["layer_devices"] = gpus
    limits = Limits(4, Bytes(dict.fromkeys(model.devices, ROOM)))
    found = [outcome for _, outcome in evaluate(model, works[:1], limits, Heard())]
    assert len(found) == len(VARIANTS)
    for outcome in found:
        assert outcome.error is None
        assert outcome.capture_s is not None and outcome.capture_s > 0.04
        assert outcome.compress_s is not None and outcome.compress_s > 0.04
