"""A model folder is somebody else's: it runs no code, and whatever is odd in it is one line."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.api import Model
from kvbench.base.bounded import bounded
from kvbench.base.errors import UserError
from kvbench.classifier import trained as classifier
from kvbench.model import chat
from kvbench.model.chat import chat_around
from kvbench.model.loading import ModelSpec, load
from kvbench.model.random import RandomShape, byte_tokenizer, random_llama
from kvbench.prefill.reconstruction import template_around
from kvbench.tasks import prompt
from kvbench.tasks.longbench import LongBench
from kvbench.tasks.task import Sample
from support.cli import one_line

CODE = "import pathlib\npathlib.Path(__file__).with_name('it-ran').touch()\n"
MODULES = {
    "AutoConfig": "foreign.Config",
    "AutoModelForCausalLM": "foreign.Model",
    "AutoModelForSequenceClassification": "foreign.Model",
    "AutoTokenizer": ["foreign.Tokenizer", "foreign.Tokenizer"],
}


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    random_llama(RandomShape(context=512)).save_pretrained(folder)
    byte_tokenizer(512).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(plain: Path, tmp_path: Path) -> Path:
    """A model folder that holds a pickle and a module, each of which leaves `it-ran`."""
    copy = Path(shutil.copytree(plain, tmp_path / "model"))
    (copy / "foreign.py").write_text(CODE, encoding="utf-8")
    (copy / "evil.bin").write_bytes(pickle.dumps(Bomb(copy / "it-ran")))
    return copy


def change(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **values}))


def loaded(folder: Path) -> Any:
    return load(ModelSpec(name="theirs", path=str(folder), device="cpu"))


def pickled_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    shutil.copy(folder / "evil.bin", folder / "pytorch_model.bin")


def renamed_pickle(folder: Path) -> None:
    shutil.copy(folder / "evil.bin", folder / "model.safetensors")


def index_of(name: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "other.safetensors")
        index = {"metadata": {}, "weight_map": {"model.norm.weight": name}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")

    return write


def config_with(**values: object) -> Callable[[Path], None]:
    return lambda folder: change(folder / "config.json", **values)


def unknown_tokenizer(folder: Path) -> None:
    change(folder / "tokenizer_config.json", auto_map=MODULES, tokenizer_class="Tokenizer")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (pickled_weights, "pickles are not loaded"),
        (renamed_pickle, "cannot be loaded"),
        (index_of("evil.bin"), "only .safetensors files beside it"),
        (index_of("../evil.safetensors"), "only .safetensors files beside it"),
        (config_with(transformers_weights="evil.bin"), "cannot be loaded"),
        (config_with(auto_map=MODULES, model_type="foreign"), "does not cover"),
        (config_with(attn_implementation="them/kernel"), "names code of the hub's"),
        (config_with(text_config={"_attn_implementation": "them/x"}), "names code of the hub's"),
        (config_with(experts_implementation={"a": "them/x"}), "names code of the hub's"),
        (unknown_tokenizer, "cannot be loaded"),
    ],
)
def test_code_and_pickles_of_a_model_folder_are_refused_and_do_not_run(
    folder: Path, spoil: Callable[[Path], None], said: str
) -> None:
    spoil(folder)
    with pytest.raises(UserError) as error:
        loaded(folder)
    assert said in one_line(error)
    assert not (folder / "it-ran").exists()


def test_the_pickle_of_these_tests_runs_where_it_is_loaded(folder: Path) -> None:
    pickle.loads((folder / "evil.bin").read_bytes())
    assert (folder / "it-ran").exists()


def test_a_covered_model_loads_without_the_code_that_its_folder_names(folder: Path) -> None:
    config_with(auto_map=MODULES)(folder)
    change(folder / "tokenizer_config.json", auto_map=MODULES)
    shutil.copy(folder / "evil.bin", folder / "adapter_model.bin")
    assert loaded(folder).geometry.layers == RandomShape().layers
    assert not (folder / "it-ran").exists()


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.mkdir('it-ran') }}",
        "{{ self._TemplateReference__context }}{{ raise_exception('no\nway') }}",
        "{% if %}",
        "{{ messages[0].nothing.more }}",
        "{{ 1 / 0 }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
    ],
)
def test_a_chat_template_stays_in_its_sandbox_and_fails_in_one_line(
    folder: Path, template: str
) -> None:
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    tokenizer = loaded(folder).tokenizer
    with pytest.raises(UserError) as error:
        chat_around(tokenizer)
    assert "chat template fails" in one_line(error)


def test_a_chat_template_that_never_ends_is_stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    (folder / "chat_template.jinja").write_text(inner, encoding="utf-8")
    monkeypatch.setattr(chat, "TEMPLATE_SECONDS", 0.2)
    model = loaded(folder)
    (task,) = LongBench(["qasper"]).tasks()
    asked = Sample(id="0", task=task, context="A lamp.", input="What?", answers=["A lamp"])
    for apply in (
        lambda: prompt.render(asked, model.tokenizer, prompt.PromptRules()),
        lambda: Model(model).prefill("A lamp."),
        lambda: template_around(model.tokenizer, [5, 6, 7]),
    ):
        with pytest.raises(UserError) as error:
            apply()
        assert "chat template is not done after 0.2 s" in one_line(error)
    assert not any(thread.name == "bounded call" for thread in threading.enumerate())


def test_a_bounded_call_returns_or_raises_what_the_call_does() -> None:
    assert bounded(lambda: [1], 5) == [1]
    assert bounded(lambda: None, 5) is None
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 / 0, 5)


JSON_FILES = ("config.json", "tokenizer_config.json", "generation_config.json", "tokenizer.json")
CONTENTS = ("", "[]", "3", "null", "{", "[" * 100_000, "\xff", '{"a": 1e999}')
VALUES = (None, True, 3, -1, 0, 2.5, "abc", "", [], [1, "x"], {}, {"a": 1}, 10**30, "a\nb")
MORE_FIELDS = ("quantization_config", "sliding_window", "layer_types", "chat_template")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_odd_json_of_a_model_folder_loads_or_is_one_line(plain: Path, data: st.DataObject) -> None:
    copy = plain.with_name("odd")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(plain, copy)
    path = copy / data.draw(st.sampled_from(JSON_FILES))
    if data.draw(st.booleans()):
        field = data.draw(st.sampled_from([*json.loads(path.read_text()), *MORE_FIELDS]))
        change(path, **{field: data.draw(st.sampled_from(VALUES))})
    else:
        path.write_bytes(data.draw(st.sampled_from(CONTENTS)).encode("latin1"))
    try:
        loaded(copy)
    except UserError as error:
        assert "\n" not in str(error)


def test_a_classifiers_folder_runs_no_code(tmp_path: Path) -> None:
    (tmp_path / "foreign.py").write_text(CODE, encoding="utf-8")
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "it-ran")))
    configs: tuple[dict[str, object], ...] = (
        {"model_type": "foreign", "auto_map": MODULES},
        {"model_type": "bert", "auto_map": MODULES},
        {"model_type": "bert", "attn_implementation": "them/kernel"},
    )
    for config in configs:
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
        manifest = {"kind": classifier.ENCODER, "digest": json.dumps(config)}
        (tmp_path / classifier.MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        with pytest.raises(UserError) as error:
            classifier.load(str(tmp_path))
        assert "cannot be loaded" in one_line(error)
        assert not (tmp_path / "it-ran").exists()
