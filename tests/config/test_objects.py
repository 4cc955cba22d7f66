"""Any value of the wrong type, in any key of any configuration file, is one line or harmless."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hydra
import pytest
import yaml
from hydra.errors import HydraException
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from kvbench.base.errors import UserError
from kvbench.cli.main import app
from kvbench.config.hydra_errors import one_line
from kvbench.config.objects import built, instantiated
from kvbench.config.planning import plan_from_config
from kvbench.model.spec import ModelSpec
from kvbench.plan.protocol import Protocol
from support.cases import slow
from support.paths import CONF

VALUES = (None, True, 3, -1, 2.5, float("nan"), "abc", "", [], [1, "x"], {}, {"a": 1})
WRITTEN = ("null", "true", "3", "-1", "2.5", "nan", "abc", "''", "[]", "[1,x]", "{}", "{a:1}")


def files(group: str) -> list[Path]:
    found = sorted((CONF / group).glob("*.yaml"))
    assert found
    return found


def node_of(path: Path) -> dict[str, Any]:
    node = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {key: value for key, value in node.items() if key != "defaults"}


def changed(node: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The node with each of its values, nested ones too, replaced by each of VALUES."""
    for key, value in node.items():
        for other in VALUES:
            yield {**node, key: other}
        if isinstance(value, dict):
            yield from ({**node, key: inner} for inner in changed(value))


def refused_or_read(make: Any, node: dict[str, Any]) -> None:
    try:
        make(node)
    except UserError as error:
        assert "\n" not in str(error), node


@pytest.mark.parametrize("path", files("model"), ids=lambda p: p.stem)
def test_models_of_wrong_types_are_refused_in_one_line(path: Path) -> None:
    def make(node: dict[str, Any]) -> None:
        spec = built(ModelSpec, "model", node)
        assert isinstance(spec.name, str) and isinstance(spec.path, str)
        limit = spec.input_limit("paper")
        assert limit is None or (isinstance(limit, int) and limit >= 1)
        assert spec.revision is None or isinstance(spec.revision, str)

    for node in changed({**node_of(path), "path": "random"}):
        refused_or_read(make, node)


@pytest.mark.parametrize("path", files("protocol"), ids=lambda p: p.stem)
def test_protocols_of_wrong_types_are_refused_in_one_line(path: Path) -> None:
    for node in changed(node_of(path)):
        refused_or_read(lambda changed: hash(built(Protocol, "protocol", changed)), node)


@pytest.mark.parametrize("path", files("task"), ids=lambda p: p.stem)
def test_suites_of_wrong_types_are_refused_in_one_line(path: Path) -> None:
    def make(node: dict[str, Any]) -> None:
        suite = instantiated(node, "task", False)
        suite.tasks()
        suite.source(suite.own_data or "sample", hub_repo="", revision=None)

    for node in changed(node_of(path)):
        refused_or_read(make, node)


STATED = [path for path in files("method") if "_target_" in node_of(path)]  # others are presets


@pytest.mark.parametrize("path", STATED, ids=lambda p: p.stem)
def test_methods_of_wrong_types_are_refused_in_one_line(path: Path) -> None:
    for other in changed(node_of(path)):
        refused_or_read(lambda changed: instantiated(changed, "method", False), other)


def keys(node: Mapping[str, Any]) -> Iterator[str]:
    for key, value in node.items():
        if key not in ("defaults", "hydra"):
            yield key
            if isinstance(value, dict):
                yield from (f"{key}.{inner}" for inner in keys(value))


def settings_are_refused_or_read(key: str, value: str) -> None:
    words = ["model=tiny-random", "method=streamingllm", f"{key}={value}"]
    with hydra.initialize_config_module("kvbench.conf", version_base="1.3"):
        try:
            config = hydra.compose("config", words)
        except HydraException as error:
            assert "\n" not in one_line(error, words), words
            return
        refused_or_read(lambda _: plan_from_config(config, words), {})


A_SETTING = st.sampled_from(list(keys(node_of(CONF / "config.yaml"))))
test_settings_of_wrong_types_are_refused_in_one_line = settings(max_examples=5, deadline=None)(
    given(A_SETTING, st.sampled_from(WRITTEN))(settings_are_refused_or_read)
)
test_more_settings_of_wrong_types_are_refused_in_one_line = pytest.mark.slow(
    settings(max_examples=40, deadline=None)(
        given(A_SETTING, st.sampled_from(WRITTEN))(settings_are_refused_or_read)
    )
)


@pytest.mark.parametrize(
    "word",
    [
        "model.input_limits=null",
        slow("protocol.name=[]"),
        "out=[1]",
        slow("out=2.5"),
        slow("data_revision={a:1}"),
        slow("hub_repo=null"),
        "prefill_cache=true",
        slow("lm_eval=null"),
        slow("lm_eval.tasks=[a]"),
        "model.random.seed=abc",
        slow("hydra.sweeper.params=3"),
        "hydra.sweeper.params={budget:[]}",
        slow("hydra.launcher=3"),
        slow("hydra.sweeper=null"),
        slow("hydra.launcher=null"),
        slow("hydra.callbacks=abc"),
        "hydra.job_logging=abc",
        slow("hydra.mode=abc"),
        slow("model=null"),
        "task=3",
        slow("method=null"),
    ],
)
def test_a_wrong_type_on_the_command_line_is_one_line_and_exit_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["model=tiny-random", "task=hotpotqa", "limit=1", "method=streamingllm", word]
    result = CliRunner().invoke(app, ["run", *words])
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("kvbench: ") and result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


QUICK = {("3", "model"), ("abc", "task"), ("[]", "method"), ("null", "protocol")}
ODD_GROUPS = itertools.product(("3", "abc", "[]", "null"), ("model", "task", "method", "protocol"))


@pytest.mark.parametrize(
    ("value", "group"), [pair if pair in QUICK else slow(*pair) for pair in ODD_GROUPS]
)
def test_a_group_that_an_experiment_makes_a_value_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiment").mkdir()
    text = f"# @package _global_\n{group}: {value}\n"
    (tmp_path / "experiment" / "odd.yaml").write_text(text, encoding="utf-8")
    words = ["run", "model=tiny-random", "task=hotpotqa", "limit=1", "experiment=odd"]
    result = CliRunner().invoke(app, [*words, "--config-dir", str(tmp_path)])
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("kvbench: ") and result.stderr.count("\n") == 1
