"""Specs, identities and loading from local folders."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from kvbench.base.errors import UserError
from kvbench.base.provenance import machine
from kvbench.model import loading as model_module
from kvbench.model.loading import LoadedModel, ModelSpec, load, model_identity, wrap
from kvbench.model.random import byte_tokenizer
from kvbench.model.rotary import RotaryTables
from kvbench.model.spec import FAMILIES
from kvbench.prefill.capture import capture
from kvbench.prefill.needs import Needs
from support.cli import one_line
from support.families import random_network, rescaling_network, saved, saved_wrapper
from support.models import shipped_spec
from support.paths import CONF

IDS = torch.arange(3, 40)


@pytest.mark.parametrize("path", sorted((CONF / "model").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_model_file_is_a_spec(path: Path) -> None:
    settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    if settings["path"] == "???":
        settings["path"] = "owner/other-model"
        assert ModelSpec(**settings).name == "other-model"
    else:
        assert ModelSpec(**settings).name == path.stem
    assert ModelSpec(**settings).kind in ("hub", "package", "random")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dtype": "float8"}, ["float8", "bfloat16"]),
        ({"device": "tpu"}, ["tpu", "cuda"]),
        ({"max_input_tokens": 0}, ["max_input_tokens", "0"]),
        ({"context": 1.5}, ["context", "1.5"]),
        ({"allow_offload": "yes"}, ["allow_offload", "yes"]),
        ({"path": ""}, ["path", "empty"]),
        ({"random": {"heads": 2}}, ["heads", "query_heads"]),
        ({"random": {"kv_heads": 3}}, ["kv_heads 3", "divisor"]),
        ({"random": {"layers": 0}}, ["layers=0"]),
        ({"random": {"head_dim": 15}}, ["head_dim 15"]),
    ],
)
def test_a_bad_value_is_named_with_its_remedy(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        ModelSpec(**{"name": "m", "path": "random", **changes})
    assert all(word in one_line(error) for word in words)


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/model", "a b", "nowhere.gguf"])
def test_a_path_that_does_not_exist_is_one_clear_line(path: str) -> None:
    with pytest.raises(UserError) as error:
        model_identity(ModelSpec("m", path))
    assert path in one_line(error)


def test_the_users_input_limit_wins_over_the_published_one() -> None:
    spec = shipped_spec("llama2-7b-chat")
    assert (spec.input_limit("official"), spec.input_limit("paper")) == (3500, 3950)
    mine = shipped_spec("llama2-7b-chat", max_input_tokens=2048)
    assert (mine.input_limit("official"), mine.input_limit("paper")) == (2048, 2048)
    assert shipped_spec("phi-3-mini-4k-instruct").input_limit("paper") is None


def test_specs_and_identities_of_local_models_need_no_torch(tmp_path: Path) -> None:
    saved(tmp_path)
    code = f"""
        import sys
        from kvbench.model.loading import ModelSpec, model_identity
        model_identity(ModelSpec("m", {str(tmp_path)!r}))
        model_identity(ModelSpec("m", "random"))
        heavy = {{"torch", "transformers"}} & set(sys.modules)
        sys.exit(f"imported {{heavy}}" if heavy else 0)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_local_folder_of_every_family_loads(family: str, tmp_path: Path) -> None:
    saved(tmp_path, family)
    model = load(ModelSpec("", str(tmp_path), device="cpu"))
    assert model.network.config.model_type == family
    assert model.spec.name == tmp_path.name
    assert model.eos_ids == {1}
    assert model.geometry.kv_heads == 2 and model.geometry.context == 512
    eager = random_network(family)(IDS[None], use_cache=False).logits[0, -1]
    logits = capture(model, IDS, Needs()).last_logits
    torch.testing.assert_close(logits, eager, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["gpt2", "mamba", "gemma3n", "mistral3", "opt"])
def test_a_family_that_is_not_covered_is_refused_by_name(family: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError) as error:
        load(ModelSpec("m", str(tmp_path)))
    text = one_line(error)
    assert repr(family) in text and ", ".join(FAMILIES) in text


@pytest.mark.parametrize("old_names", [True, False])
def test_of_a_model_of_texts_and_pictures_the_text_model_is_loaded(
    old_names: bool, tmp_path: Path
) -> None:
    eager = saved_wrapper(tmp_path, old_names)
    model = load(ModelSpec("", str(tmp_path), device="cpu"))
    assert model.network.config.model_type == "gemma3_text"
    assert not any("vision" in name for name, _ in model.network.named_parameters())
    assert model.geometry.layers == 3 and model.eos_ids == {1, 9}
    logits = capture(model, IDS, Needs()).last_logits
    torch.testing.assert_close(
        logits, eager(IDS[None], use_cache=False).logits[0, -1], atol=1e-4, rtol=0
    )


def test_a_model_of_texts_and_pictures_that_lacks_text_weights_is_refused(tmp_path: Path) -> None:
    saved_wrapper(tmp_path, True)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["language_model.model.layers.1.self_attn.k_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="lacks 1 of its weights") as error:
        load(ModelSpec("m", str(tmp_path), device="cpu"))
    one_line(error)


def test_pickled_weights_are_not_loaded(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    with pytest.raises(UserError, match="safetensors"):
        load(ModelSpec("m", str(tmp_path)))


def test_a_damaged_weight_file_is_one_clear_line(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(UserError) as error:
        load(ModelSpec("m", str(tmp_path), device="cpu"))
    assert str(tmp_path) in one_line(error)


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.self_attn.k_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError) as error:
        load(ModelSpec("m", str(tmp_path), device="cpu"))
    assert "lacks 1 of its weights (model.layers.1.self_attn.k_proj.weight" in one_line(error)


@pytest.mark.parametrize(
    ("config", "words"), [(None, "no config.json"), ("{", "not valid JSON"), ("[]", "JSON object")]
)
def test_a_folder_without_a_readable_config_is_one_clear_line(
    config: str | None, words: str, tmp_path: Path
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    with pytest.raises(UserError) as error:
        model_identity(ModelSpec("m", str(tmp_path)))
    assert words in one_line(error)


def test_the_dtype_setting_decides_and_auto_is_the_checkpoints(tmp_path: Path) -> None:
    random_network("llama").to(torch.bfloat16).save_pretrained(tmp_path)
    byte_tokenizer(512).save_pretrained(tmp_path)
    for dtype, expected in [
        ("auto", torch.bfloat16),
        ("float32", torch.float32),
        ("float16", torch.float16),
    ]:
        model = load(ModelSpec("m", str(tmp_path), dtype=dtype, device="cpu"))
        assert model.network.dtype == expected
        assert f"torch.{model.identity['dtype']}" == str(expected)


def test_cuda_where_there_is_none_is_one_clear_line() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(UserError, match="no CUDA device"):
        load(shipped_spec("tiny-random", device="cuda"))


def test_a_device_map_spreads_the_model_and_captures_the_same(tmp_path: Path) -> None:
    saved(tmp_path)
    plain = capture(load(ModelSpec("m", str(tmp_path), device="cpu")), IDS, Needs())
    mapped = capture(load(ModelSpec("m", str(tmp_path), device_map="auto")), IDS, Needs())
    torch.testing.assert_close(plain.last_logits, mapped.last_logits.cpu(), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("places", "where"),
    [
        ({"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": "cpu"}, "on the cpu"),
        ({"model.embed_tokens": 0, "model.layers.0": 1, "model.layers.1": "disk"}, "on the disk"),
        ({"model.embed_tokens": "cpu", "model.layers.1": "disk"}, "on the disk"),
    ],
)
def test_a_device_map_that_offloads_is_refused_in_one_line(
    places: dict[str, Any], where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Placed(AutoModelForCausalLM):
        @classmethod
        def from_pretrained(cls, *args: Any, **named: Any) -> Any:
            network, found = super().from_pretrained(*args, **{**named, "device_map": None})
            network.hf_device_map = places
            return network, found

    saved(tmp_path)
    monkeypatch.setattr("transformers.AutoModelForCausalLM", Placed)
    with pytest.raises(UserError) as error:
        load(ModelSpec("m", str(tmp_path), device_map="auto"))
    text = one_line(error)
    assert "1 of" in text and "(model.layers.1, ...)" in text and where in text
    assert "model.allow_offload=true" in text
    assert load(ModelSpec("m", str(tmp_path), device_map="auto", allow_offload=True))


def test_what_is_left_on_the_disk_is_refused_or_fetched_and_changes_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path)
    plain = capture(load(ModelSpec("m", str(tmp_path), device="cpu")), IDS, Needs(window=4))
    # This machine has less memory than the weights take.
    monkeypatch.setattr(
        "transformers.integrations.accelerate.accelerate_max_memory", lambda _: {"cpu": 300_000}
    )
    spec = ModelSpec("m", str(tmp_path), device_map="auto")
    with pytest.raises(UserError, match=r"on the disk.*model\.allow_offload=true"):
        load(spec)
    asked = load(replace(spec, allow_offload=True))
    assert "disk" in asked.network.hf_device_map.values()
    assert set(asked.devices) == {torch.device("cpu")}, "where they compute, not where they wait"
    found = capture(asked, IDS, Needs(window=4))
    assert torch.equal(found.last_logits, plain.last_logits)
    assert all(torch.equal(a.k, b.k) for a, b in zip(found.layers, plain.layers, strict=True))


def test_offloading_changes_no_key(tmp_path: Path) -> None:
    saved(tmp_path)
    spec = ModelSpec("m", str(tmp_path))
    assert model_identity(spec) == model_identity(replace(spec, allow_offload=True))


def test_a_models_devices_are_those_of_its_layers_and_of_its_embedding() -> None:
    network = random_network("llama")
    network.model.layers[1].to("meta")
    model = wrap(network, byte_tokenizer(512), ModelSpec("m", "random"), {})
    cpu, meta = torch.device("cpu"), torch.device("meta")
    assert model.layer_devices == (cpu, meta, cpu)
    assert model.devices == (cpu, meta)


def test_waiting_asks_every_gpu_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", asked.append)
    model = wrap(random_network("llama"), byte_tokenizer(512), ModelSpec("m", "random"), {})
    model.wait()
    assert asked == []
    gpus = [torch.device("cuda", i) for i in (0, 1, 1)]
    model.__dict__["layer_devices"] = tuple(gpus)
    model.wait()
    assert asked == gpus[:2]


def test_loading_sets_the_arithmetic_that_results_are_promised_in() -> None:
    torch.set_float32_matmul_precision("medium")
    torch.backends.cuda.enable_cudnn_sdp(True)
    wrap(random_network("llama"), byte_tokenizer(512), ModelSpec("m", "random"), {})
    assert machine()["float32_matmul"] == "highest"
    assert not torch.backends.cuda.matmul.allow_tf32
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_rotary_tables_of_one_device_do_not_push_out_those_of_another() -> None:
    tables = RotaryTables()
    mine = [tables.table(*torch.full((2, 8, 4), float(i))) for i in range(4)]
    tables.table(*torch.zeros(2, 8, 4, device="meta"))
    assert set(mine) < set(tables.tables)
    tables.table(*torch.full((2, 8, 4), 9.0))
    assert mine[0] not in tables.tables and len(tables.tables) == 5


def test_a_model_is_loaded_once() -> None:
    spec = shipped_spec("tiny-random", device="cpu")
    assert load(spec) is load(shipped_spec("tiny-random", device="cpu"))


def test_the_fingerprint_follows_weights_and_dtype_only(tmp_path: Path) -> None:
    def fingerprint(**changes: Any) -> str:
        spec = shipped_spec("tiny-random", device="cpu", **changes)
        return wrap(network, tokenizer, spec, model_identity(spec)).fingerprint

    model = load(shipped_spec("tiny-random", device="cpu"))
    network, tokenizer = model.network, model.tokenizer
    assert fingerprint() == model.fingerprint == fingerprint(max_input_tokens=100)
    other_seed = {"layers": 3, "query_heads": 4, "kv_heads": 2, "head_dim": 16, "seed": 1}
    assert len({fingerprint(), fingerprint(dtype="float16"), fingerprint(random=other_seed)}) == 3


def test_a_changed_weight_file_changes_the_identity(tmp_path: Path) -> None:
    saved(tmp_path)
    spec = ModelSpec("m", str(tmp_path))
    before = model_identity(spec)
    assert model_identity(spec) == before
    random_network("llama", seed=1).save_pretrained(tmp_path)
    assert model_identity(spec) != before


def test_the_same_seed_gives_the_same_random_model_and_leaves_the_generator_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    model_module.forget_loaded()
    first = load(shipped_spec("tiny-random", device="cpu"))
    assert torch.equal(torch.rand(1), expected)
    model_module.forget_loaded()
    second = load(shipped_spec("tiny-random", device="cpu"))
    assert first is not second
    for a, b in zip(first.network.parameters(), second.network.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_byte_tokenizer_gives_back_every_text(tiny: LoadedModel) -> None:
    text = "Ünïcode, 注意力,\r\n\ttabs  and spaces "
    ids = tiny.tokenizer(text).input_ids
    assert ids[0] == tiny.tokenizer.bos_token_id
    assert tiny.tokenizer.decode(ids, skip_special_tokens=True) == text
    chat = tiny.tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat == "<s>[user] hi</s>[assistant] "


@pytest.mark.parametrize("rope_type", ["longrope", "dynamic"])
def test_generation_across_a_change_of_rotation_is_refused(rope_type: str) -> None:
    network = rescaling_network(rope_type)
    model = wrap(network, byte_tokenizer(256), ModelSpec("long", "random"), {})
    model.check_length(40, 24)
    model.check_length(65, 100)
    with pytest.raises(UserError, match=r"crosses 64.*max_input_tokens to 39 or less"):
        model.check_length(40, 25)
    with pytest.raises(UserError, match="exceeds the context"):
        model.check_length(257)
