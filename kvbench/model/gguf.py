"""GGUF files as models: converted once to safetensors in a cache folder.

Parsing a GGUF takes transformers about 20 s for 135M parameters; the converted folder loads in
0.1 s and is bit-equal. Torch-free at import.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from kvbench.base.errors import UserError
from kvbench.model.spec import refuse_uncovered

_log = logging.getLogger(__name__)

_CONVERSION = 1  # raised when what `_convert` writes changes, so that older folders are ignored


def cache_folder() -> Path:
    """Where converted models are kept: $KVBENCH_CACHE, or ~/.cache/kvbench."""
    named = os.environ.get("KVBENCH_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "kvbench"


def converted(path: Path, key: str, dtype: str) -> Path:
    """Return the safetensors folder of a GGUF file, converting it the first time.

    Two processes that convert at once both work in folders of their own; the first rename wins.

    Args:
        path: the GGUF file.
        key: identity of its bytes; a changed file is converted anew.
        dtype: `float32` (exact), `bfloat16` or `float16`.

    Raises:
        UserError: the cache folder cannot be written, or the file is not a model kvbench runs.
    """
    models = cache_folder() / "models"
    target = models / f"{path.stem}-{dtype}-{key[:16]}-v{_CONVERSION}"
    if (target / "config.json").is_file():
        return target
    try:
        models.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".converting-", dir=models))
    except OSError as error:
        raise _unwritable(models, error) from error
    try:
        _convert(path, scratch, dtype)
        scratch.rename(target)
    except OSError as error:
        if (target / "config.json").is_file():  # another process was first; its folder is equal
            return target
        raise _unwritable(models, error) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _unwritable(folder: Path, error: OSError) -> UserError:
    reason = error.strerror or str(error).splitlines()[0]
    return UserError(
        f"cannot write the converted model to {folder} ({reason}): free space there, or set"
        " KVBENCH_CACHE to a folder that can be written"
    )


def _convert(path: Path, folder: Path, dtype: str) -> None:
    """Write the model and tokenizer of a GGUF file to `folder` as safetensors.

    Looks wrong but intended: transformers leaves the GGUF quantizer and its config on the
    dequantized model (save_pretrained then refuses), gives the tokenizer a wrong EOS and drops
    the digit splitter; the GGUF's own metadata is right in each case.
    """
    import torch
    from safetensors import SafetensorError
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    facts = _metadata(path)
    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    _log.info("converting %s, once (about 20 s for 135M parameters)", path.name)
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar with no switch
            network = AutoModelForCausalLM.from_pretrained(**where, dtype=getattr(torch, dtype))
        tokenizer = AutoTokenizer.from_pretrained(**where)
    except (ValueError, KeyError, RuntimeError, NotImplementedError, ImportError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{path} cannot be read as a GGUF model: {reason}") from error
    network.hf_quantizer = None  # type: ignore[assignment]
    if hasattr(network.config, "quantization_config"):
        del network.config.quantization_config
    network.config.architectures = [type(network).__name__]
    eos = facts["tokenizer.ggml.eos_token_id"]
    network.config.eos_token_id = network.generation_config.eos_token_id = eos
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(eos)
    tokenizer.model_max_length = network.config.max_position_embeddings
    if facts["tokenizer.ggml.pre"] == "smollm":
        backend = tokenizer.backend_tokenizer
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), backend.pre_tokenizer]
        )
    try:
        network.save_pretrained(folder)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    tokenizer.save_pretrained(folder)


def _metadata(path: Path) -> dict[str, Any]:
    """The metadata of a GGUF file that the conversion reads; absent keys are None.

    Raises:
        UserError: not a GGUF file, or an architecture that kvbench does not run.
    """
    import gguf

    try:
        reader = gguf.GGUFReader(str(path))
    except (ValueError, OSError, IndexError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{path} is not a readable GGUF file: {reason}") from error
    keys = ("general.architecture", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.pre")
    fields = {key: reader.get_field(key) for key in keys}
    facts = {key: None if field is None else field.contents() for key, field in fields.items()}
    architecture = str(facts["general.architecture"])
    refuse_uncovered(str(path), {"gemma3": "gemma3_text"}.get(architecture, architecture))
    return facts
