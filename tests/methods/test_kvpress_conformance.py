"""The same tokens as kvpress 0.5.5 keeps, in every layer and KV head, under equal settings.

kvpress pins another transformers, so what it keeps is a fixture, made by scripts/kvpress_fixture.py
from the same networks and prompts as here.

In bfloat16 kvpress rounds scores to 8 bits, and the forwards of two releases of transformers differ
in the last of them: heads then differ in rows whose scores lie next to each other.
"""

from __future__ import annotations

import importlib.util
import json
from functools import cache
from typing import Any

import pytest
import torch

from kvbench.cache.store import Band
from kvbench.compress.budget import Budget
from kvbench.compress.method import Method
from kvbench.compress.scoring import ScoringMethod
from kvbench.model.loading import LoadedModel, ModelSpec, wrap
from kvbench.prefill.capture import capture
from kvbench.prefill.state import LayerState
from support.methods import composed
from support.paths import ROOT, TESTS

FIXTURE = json.loads((TESTS / "fixtures" / "kvpress-0.5.5.json").read_text(encoding="utf-8"))
CASES = FIXTURE["cases"]


def _wrapped(fields: dict[str, str]) -> dict[str, str]:
    return {**{k: f"base.{v}" for k, v in fields.items()}, "alpha_safeguard": "alpha"}


# The words that ask kvbench for a press's method, and its field for each of the press's settings.
_SNAPKV = {"window_size": "window", "kernel_size": "kernel"}
_EXPECTED = {
    "n_future_positions": "future_positions",
    "n_sink": "sinks",
    "use_covariance": "covariance",
    "use_vnorm": "value_norm",
    "epsilon": "epsilon",
}
PRESETS: dict[str, tuple[list[str], dict[str, str]]] = {
    "SnapKVPress": (["method=snapkv_kvpress"], _SNAPKV),
    "PyramidKVPress": (["method=pyramidkv_kvpress"], {**_SNAPKV, "beta": "beta"}),
    "StreamingLLMPress": (["method=streamingllm"], {"n_sink": "sinks"}),
    "KeyRerotationPress(StreamingLLMPress)": (
        ["method=streamingllm", "method.positions=cache"],
        {"n_sink": "sinks"},
    ),
    "ObservedAttentionPress": (["method=observed_attention"], {}),
    "KnormPress": (["method=knorm"], {}),
    "TOVAPress": (["method=tova"], {}),
    "ExpectedAttentionPress": (["method=expected_attention"], _EXPECTED),
    "AdaKVPress(SnapKVPress)": (["method=adakv_kvpress"], _wrapped(_SNAPKV)),
    "AdaKVPress(ExpectedAttentionPress)": (
        ["method=adakv_kvpress", "method/base=expected_attention"],
        _wrapped(_EXPECTED),
    ),
    "AdaKVPress(KnormPress)": (["method=adakv_kvpress", "method/base=knorm"], _wrapped({})),
    "KVzipPress": (["method=kvzip_kvpress"], {"n_sink": "sinks", "chunk_size": "chunk_tokens"}),
}
# No field: the budget, KVzip's level (below) and its other scores, which no case asks for.
NO_FIELD = {"compression_ratio", "layerwise", "kvzip_plus_normalization"}


def _script() -> Any:
    path = ROOT / "scripts" / "kvpress_fixture.py"
    spec = importlib.util.spec_from_file_location("kvpress_fixture", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = _script()


def _name(case: dict[str, Any]) -> str:
    defaults: dict[str, Any] = {}
    for other in CASES:
        if other["press"] == case["press"]:
            for key, value in other["settings"].items():
                defaults.setdefault(key, value)
    changed = [
        f"{k}={v}"
        for k, v in case["settings"].items()
        if k == "compression_ratio" or v != defaults[k]
    ]
    chat = ["chat"] if case["chat_template"] else []
    kind = [case[key] for key in ("network", "dtype") if key in case]
    parts = [case["press"], case["attention"], str(case["tokens"]), *changed, *chat, *kind]
    return "-".join(parts)


@cache
def _model(chat: bool, kind: str, dtype: str) -> LoadedModel:
    """A network with or without a chat template."""
    network = SCRIPT.network(kind, dtype)
    if dtype == "float32":
        assert SCRIPT.weights_digest(network) == FIXTURE["weights"], "make the fixture again"
    spec = ModelSpec(name="kvpress", path="random", device="cpu")
    told = {"chat": chat, "network": kind, "dtype": dtype}
    return wrap(network, SCRIPT.tokenizer(chat_template=chat), spec, told)


def _method(case: dict[str, Any]) -> Method:
    """The preset with the case's settings in place of its own."""
    choice, fields = PRESETS[case["press"]]
    settings = case["settings"]
    assert settings.keys() - NO_FIELD == fields.keys()
    words = [f"method.{fields[k]}={v}" for k, v in settings.items() if k in fields]
    if settings.get("layerwise"):
        words.append("method.level=layer")
    return composed(*choice, *words)


def _kept_by_kvpress(case: dict[str, Any]) -> list[list[list[int]]]:
    return [
        [[p for p in range(case["tokens"]) if int(head, 16) >> p & 1] for head in layer]
        for layer in case["kept"]
    ]


def test_every_press_has_its_cases():
    assert FIXTURE["kvpress"] == "0.5.5"
    assert {case["press"] for case in CASES} == PRESETS.keys()


@pytest.mark.parametrize("press", PRESETS)
def test_a_preset_has_the_defaults_of_its_press(press):
    choice, _ = PRESETS[press]
    first = next(case for case in CASES if case["press"] == press)
    if press == "AdaKVPress(KnormPress)":
        choice = [*choice, f"method.alpha={first['settings']['alpha_safeguard']}"]
    assert composed(*choice) == _method(first)


def _assert_rotated_as_kvpress(case: dict[str, Any], layers: list[list[tuple[Band, int]]]) -> None:
    """Two rows of each head, and every row at its place in the cache."""
    rows = [SCRIPT.SINKS, -1]
    for layer, expected in zip(layers, case["keys"], strict=True):
        for (band, head), keys in zip(layer, expected, strict=True):
            assert band.positions[head].tolist() == list(range(band.k.shape[1]))
            found = band.k[head, rows].flatten()
            torch.testing.assert_close(found, torch.tensor(keys), atol=5e-4, rtol=0)


def _apart(method: Method, layer: LayerState, head: int, ours: set[int], theirs: set[int]) -> float:
    """How far the scores of the rows that one of the two keeps alone lie apart, of the largest."""
    assert isinstance(method, ScoringMethod)
    scores = method.head_scores(layer, method.newest_rows(len(ours)))[head]
    alone = scores[sorted(ours ^ theirs)]
    return float((alone.max() - alone.min()) / alone.max()) if len(alone) else 0.0


@pytest.mark.parametrize("case", CASES, ids=map(_name, CASES))
def test_the_same_tokens_as_kvpress(case):
    dtype = case.get("dtype", "float32")
    model = _model(case["chat_template"], case.get("network", "llama"), dtype)
    ids = SCRIPT.prompt(case["tokens"], chat_template=case["chat_template"])
    assert SCRIPT.digest(ids) == case["prompt"], "make the fixture again"
    method = _method(case)
    kept = 1 - case["settings"]["compression_ratio"]
    expected = _kept_by_kvpress(case)
    heads = [head for layer in expected for head in layer]
    if case["press"] == "PyramidKVPress":
        budget = Budget(fraction=kept)  # its layers share a mean that is no whole number
    else:
        mean, rest = divmod(sum(map(len, heads)), len(heads))
        assert rest == 0
        budget = Budget(tokens=mean)
    prefill = capture(model, ids, method.needs)
    compressed = method.compress(prefill, budget)
    bands = [[(b, i) for b in s.materialize() for i in range(len(b.k))] for s in compressed.layers]
    assert [len(x) for x in bands] == [len(x) for x in expected]
    if "keys" in case:
        _assert_rotated_as_kvpress(case, bands)
    equal = []
    for layer, held, theirs in zip(prefill.layers, bands, expected, strict=True):
        for head, ((band, i), rows) in enumerate(zip(held, theirs, strict=True)):
            if "keys" in case:  # positions are numbered anew: values tell the rows
                equal.append(torch.equal(band.v[i], layer.v[head, rows]))
                continue
            ours = band.positions[i].tolist()
            equal.append(ours == rows)
            if dtype == "bfloat16" and not equal[-1]:
                both = set(ours), set(rows)
                assert len(both[0] - both[1]) <= 2
                assert _apart(method, layer, head, *both) < 2**-5  # several roundings to 8 bits
    if dtype == "float32" or case["press"] in EXACT:
        assert all(equal), f"{sum(equal)} of {len(heads)} heads keep the same positions"


EXACT = {"KnormPress", "StreamingLLMPress"}
"""Presses whose scores are not rounded to the cache's dtype."""
