"""The same tokens as kvpress 0.5.5 keeps, in every layer and KV head, under equal settings.

kvpress pins another transformers, so what it keeps is a fixture, made by scripts/kvpress_fixture.py
from the same network and prompts as here.
"""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest

from kvbench.compress.budget import Budget
from kvbench.compress.method import Method
from kvbench.model.loading import LoadedModel, ModelSpec, wrap
from kvbench.prefill.capture import capture
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
    "ObservedAttentionPress": (["method=observed_attention"], {}),
    "KnormPress": (["method=knorm"], {}),
    "TOVAPress": (["method=tova"], {}),
    "ExpectedAttentionPress": (["method=expected_attention"], _EXPECTED),
    "AdaKVPress(SnapKVPress)": (["method=adakv_kvpress"], _wrapped(_SNAPKV)),
    "AdaKVPress(ExpectedAttentionPress)": (
        ["method=adakv_kvpress", "method/base=expected_attention"],
        _wrapped(_EXPECTED),
    ),
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
    return "-".join([case["press"], case["attention"], str(case["tokens"]), *changed, *chat])


@pytest.fixture(scope="module")
def models() -> dict[bool, LoadedModel]:
    """The network with and without a chat template."""
    network = SCRIPT.network()
    assert SCRIPT.weights_digest(network) == FIXTURE["weights"], "make the fixture again"
    spec = ModelSpec(name="kvpress", path="random", device="cpu")
    return {
        chat: wrap(network, SCRIPT.tokenizer(chat_template=chat), spec, {"chat": chat})
        for chat in (False, True)
    }


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
    assert composed(*choice) == _method(first)


@pytest.mark.parametrize("case", CASES, ids=map(_name, CASES))
def test_the_same_tokens_as_kvpress(case, models):
    model = models[case["chat_template"]]
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
    cache = method.compress(capture(model, ids, method.needs), budget)
    found = [[p.tolist() for b in s.materialize() for p in b.positions] for s in cache.layers]
    assert [len(x) for x in found] == [len(x) for x in expected]
    pairs = zip(heads, (head for layer in found for head in layer), strict=True)
    equal = [a == b for a, b in pairs]
    assert all(equal), f"{sum(equal)} of {len(heads)} heads keep the same positions"
