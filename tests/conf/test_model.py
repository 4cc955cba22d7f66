"""The model presets: every field is stated and fits the others."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import yaml

from kvbench.model.spec import ModelSpec, RandomShape
from support.models import shipped_spec
from support.paths import CONF

NAMES = sorted(p.stem for p in (CONF / "model").glob("*.yaml"))
ON_THE_HUB = [n for n in NAMES if n != "custom" and shipped_spec(n).kind == "hub"]


def node_of(name: str) -> dict[str, Any]:
    node = yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(node, dict)
    return node


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_states_every_field(name: str) -> None:
    assert set(node_of(name)) == {f.name for f in fields(ModelSpec)}
    assert node_of(name)["name"] in (name, "")


@pytest.mark.parametrize("name", ON_THE_HUB)
def test_a_preset_of_the_hub_fits_its_context(name: str) -> None:
    spec = shipped_spec(name)
    assert spec.path.count("/") == 1 and spec.dtype == "bfloat16"
    shape = spec.random_shape
    assert isinstance(spec.random, RandomShape) and shape.intermediate and shape.vocabulary
    assert all(limit <= shape.context for _, limit in spec.input_limits)
    first = (CONF / "model" / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert f"context {shape.context}" in first


def test_presets_for_what_is_evaluated_today_are_there() -> None:
    assert {
        "llama3.1-8b-instruct",
        "llama3.2-1b-instruct",
        "llama3.2-3b-instruct",
        "qwen2.5-7b-instruct",
        "qwen3-4b",
        "qwen3-8b",
        "mistral-7b-instruct-v0.3",
        "ministral-8b-instruct",
        "gemma-3-4b-it",
        "gemma-3-12b-it",
        "phi-4-mini",
        "smollm3-3b",
        "glm-4-9b",
    } <= set(ON_THE_HUB)


def test_models_that_think_are_told_not_to() -> None:
    told = {n for n in NAMES if node_of(n)["chat_template_kwargs"] == {"enable_thinking": False}}
    assert told == {"qwen3-4b", "qwen3-8b", "smollm3-3b"}
