"""Models: what a user names, what identifies its weights, and loading it once per process.

Torch-free at import: specs and identities are needed before any model is.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from logging import ERROR
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvbench.errors import UserError
from kvbench.gguf import converted, gguf_identity, packaged_gguf
from kvbench.tiny import RandomShape, byte_tokenizer, random_llama

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text")
"""The `model_type`s whose attention goes through kvbench's function, each tested against eager."""

DTYPES = ("auto", "float32", "bfloat16", "float16")

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+|[\w.-]+")


@dataclass(frozen=True)
class ModelSpec:
    """A model as the user names it; hashable."""

    name: str
    """Name in tables; empty: the last part of the path."""
    path: str
    """A hub id, a local folder, a .gguf file, `package:NAME` (the GGUF inside an installed Python
    package) or `random` (a random Llama)."""
    revision: str | None = None
    """Branch, tag or commit on the hub; None: its default branch. The commit is recorded."""
    dtype: str = "auto"
    """auto: as the checkpoint states; float32 for GGUF and random models."""
    device: str = "auto"
    """auto (cuda where there is one, else cpu), cpu, cuda or cuda:N."""
    device_map: str | None = None
    """Spread over several devices, as in transformers: auto, balanced, ...; None: `device`."""
    max_input_tokens: int | None = None
    """Prompt tokens before truncation, whatever the protocol; None: `input_limits`."""
    input_limits: Mapping[str, int] | tuple[tuple[str, int], ...] = ()
    """Protocol profile -> `max_input_tokens` as published for this model."""
    context: int | None = None
    """Positions the model may use, in tokens; None: as its config states."""
    random: RandomShape | Mapping[str, int] | None = None
    """Shape and seed, for path `random`."""

    def __post_init__(self) -> None:
        """Refuse values no model can have, naming value and remedy."""
        if not self.path or not isinstance(self.path, str):
            raise UserError("model.path is empty: give a hub id, a folder or a .gguf file")
        if not self.name:
            object.__setattr__(self, "name", Path(self.path.removeprefix("package:")).name)
        if self.dtype not in DTYPES:
            raise UserError(f"model.dtype {self.dtype!r} is unknown: use {', '.join(DTYPES)}")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", str(self.device)):
            raise UserError(f"model.device {self.device!r} is unknown: use auto, cpu or cuda")
        for name in ("max_input_tokens", "context"):
            value = getattr(self, name)
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or value < 1
            ):
                raise UserError(f"model.{name} {value!r} is not a whole number >= 1 or null")
        if isinstance(self.input_limits, Mapping):
            object.__setattr__(self, "input_limits", tuple(sorted(self.input_limits.items())))
        if isinstance(self.random, Mapping):
            known = {f.name for f in fields(RandomShape)}
            for key in self.random:
                if key not in known:
                    raise UserError(f"model.random.{key} is unknown: use {', '.join(known)}")
            object.__setattr__(self, "random", RandomShape(**self.random))

    @property
    def kind(self) -> str:
        """Where the weights are: random, package, gguf, folder or hub.

        Raises:
            UserError: the path has the form of a file or folder and does not exist, or no form.
        """
        if self.path == "random":
            return "random"
        if self.path.startswith("package:"):
            return "package"
        local = Path(self.path).expanduser()
        if local.is_dir():
            return "folder"
        if local.suffix == ".gguf":
            if not local.is_file():
                raise UserError(f"model.path {self.path}: no such GGUF file")
            return "gguf"
        if self.path[0] in "./~" or not _HUB_ID.fullmatch(self.path) or local.exists():
            raise UserError(
                f"model.path {self.path} is no folder, no .gguf file and no hub id (owner/name)"
            )
        return "hub"

    def input_limit(self, profile: str) -> int | None:
        """Prompt tokens before truncation under a protocol profile.

        Returns:
            `max_input_tokens` where set, else the profile's published limit, else the `official`
            one; None: the context less what is generated and the template.
        """
        if self.max_input_tokens is not None:
            return self.max_input_tokens
        limits = dict(self.input_limits)
        return limits.get(profile, limits.get("official"))


def refuse_uncovered(path: str, family: str) -> None:
    """Raise UserError unless kvbench's attention serves this `model_type`."""
    if family not in FAMILIES:
        raise UserError(
            f"model {path} is of the family {family!r}, which kvbench does not cover;"
            f" covered: {', '.join(FAMILIES)}"
        )


def model_identity(spec: ModelSpec) -> dict[str, Any]:
    """What identifies the weights and their dtype, JSON-able, found without loading them.

    Returns:
        source, path, revision (the resolved hub commit), dtype, and weights (hash, or size and
        time of local files).

    Raises:
        UserError: the model cannot be found, or its family is not covered.
    """
    kind = spec.kind
    found: dict[str, Any] = {
        "source": kind,
        "path": spec.path,
        "revision": None,
        "dtype": "float32" if spec.dtype == "auto" else spec.dtype,
        "weights": None,
    }
    if kind == "random":
        found["weights"] = _plain(spec.random or RandomShape())
    elif kind in ("package", "gguf"):
        found["weights"] = gguf_identity(_gguf_file(spec))
    else:
        config = _read_config(spec)
        refuse_uncovered(spec.path, str(config.get("model_type")))
        if spec.dtype == "auto":
            found["dtype"] = config.get("dtype") or config.get("torch_dtype") or "auto"
        if kind == "hub":
            # The client's cache names its snapshots after the commit.
            found["revision"] = _hub_config(spec.path, spec.revision).parent.name
        else:
            found["weights"] = _folder_weights(Path(spec.path).expanduser())
    return found


@dataclass(frozen=True)
class Geometry:
    """Counts that shape a cache."""

    layers: int
    query_heads: int
    kv_heads: int
    head_dim: int
    context: int
    """Tokens the model has positions for."""
    rescaled_beyond: int | None
    """Where RoPE is longrope or dynamic: the length past which earlier keys would have been
    rotated otherwise; None elsewhere."""


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model ready to run through kvbench's attention, with its tokenizer."""

    network: Any
    """transformers PreTrainedModel in evaluation mode, gradients off."""
    tokenizer: Any
    """transformers fast tokenizer."""
    spec: ModelSpec
    geometry: Geometry
    eos_ids: frozenset[int]
    """Generation stops after any of these: the generation config's and the tokenizer's EOS."""
    identity: Mapping[str, Any]
    """As `model_identity` found it."""

    @property
    def device(self) -> torch.device:
        """Where token ids go in."""
        device: torch.device = self.network.get_input_embeddings().weight.device
        return device

    @property
    def fingerprint(self) -> str:
        """32 hex digits that change with the weights, their revision or dtype."""
        text = json.dumps(self.identity, sort_keys=True, allow_nan=False)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def check_length(self, prefilled_tokens: int, later_tokens: int = 0) -> None:
        """Refuse a prompt that the model has no positions for.

        Args:
            prefilled_tokens: tokens of the prefill.
            later_tokens: tokens fed and generated after it.

        Raises:
            UserError: it exceeds the context, or crosses the length at which a longrope model
                changes its rotation (keys before and after would disagree).
        """
        total = prefilled_tokens + later_tokens
        g = self.geometry
        if total > g.context:
            raise UserError(
                f"prompt of {prefilled_tokens} + {later_tokens} generated tokens exceeds the"
                f" context of {self.spec.name} ({g.context}): set model.max_input_tokens lower"
            )
        if g.rescaled_beyond is not None and prefilled_tokens <= g.rescaled_beyond < total:
            raise UserError(
                f"prompt of {prefilled_tokens} + {later_tokens} generated tokens crosses"
                f" {g.rescaled_beyond}, where {self.spec.name} changes its rotation: set"
                f" model.max_input_tokens to {max(1, g.rescaled_beyond - later_tokens)} or less"
            )


def wrap(network: Any, tokenizer: Any, spec: ModelSpec, identity: Mapping[str, Any]) -> LoadedModel:
    """Make a LoadedModel of a transformers model that is already in memory.

    The network's attention is set to kvbench's.

    Raises:
        UserError: its family is not covered.
    """
    from kvbench.attention import IMPLEMENTATION, attention_layers, register

    config = network.config
    refuse_uncovered(spec.path, config.model_type)
    register()
    network.set_attn_implementation(IMPLEMENTATION)
    network.requires_grad_(False).eval()
    heads = config.num_attention_heads
    context = spec.context or config.max_position_embeddings
    geometry = Geometry(
        layers=config.num_hidden_layers,
        query_heads=heads,
        kv_heads=config.num_key_value_heads or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        context=context,
        rescaled_beyond=_rescaled_beyond(config),
    )
    if len(attention_layers(network)) != geometry.layers:
        raise UserError(f"model {spec.path} has layers without an attention kvbench knows")
    generation = getattr(network.generation_config, "eos_token_id", None)
    ids = generation if isinstance(generation, list) else [generation]
    eos_ids = frozenset(int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None)
    return LoadedModel(network, tokenizer, spec, geometry, eos_ids, dict(identity))


_loaded: dict[ModelSpec, LoadedModel] = {}


def load(spec: ModelSpec) -> LoadedModel:
    """Load a model, or return it if it was the last one loaded.

    One model is held at a time: a sweep over models frees one before it loads the next.

    Raises:
        UserError: it cannot be found, read, fitted on its device, or is not covered.
    """
    if spec not in _loaded:
        _loaded.clear()
        _loaded[spec] = _load(spec)
    return _loaded[spec]


def _load(spec: ModelSpec) -> LoadedModel:
    import torch

    from kvbench.attention import register

    identity = model_identity(spec)
    register()
    device = _device(spec)
    with _quiet():
        if spec.kind == "random":
            shape = spec.random if isinstance(spec.random, RandomShape) else RandomShape()
            network = random_llama(shape).to(getattr(torch, identity["dtype"]))
            return wrap(network.to(device), byte_tokenizer(shape.context), spec, identity)
        folder = spec.path
        if spec.kind in ("package", "gguf"):
            key = hashlib.blake2b(json.dumps(identity["weights"]).encode()).hexdigest()
            folder = str(converted(_gguf_file(spec), key, identity["dtype"]))
        network, tokenizer = _from_pretrained(spec, folder, identity["revision"], device)
    return wrap(network, tokenizer, spec, identity)


def _from_pretrained(
    spec: ModelSpec, folder: str, revision: str | None, device: torch.device
) -> tuple[Any, Any]:
    """Network and tokenizer of a folder or hub id; safetensors only, no code from the repo."""
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(Path(folder).expanduser())}
    if revision is not None:
        where = {"pretrained_model_name_or_path": folder, "revision": revision}
    dtype = "auto" if spec.dtype == "auto" else getattr(torch, spec.dtype)
    try:
        tokenizer = AutoTokenizer.from_pretrained(**where, trust_remote_code=False)
        network, found = AutoModelForCausalLM.from_pretrained(
            **where,
            output_loading_info=True,
            dtype=dtype,
            device_map=spec.device_map or {"": device},
            attn_implementation="kvbench",
            use_safetensors=True,
            trust_remote_code=False,
        )
    except torch.cuda.OutOfMemoryError as error:
        raise UserError(
            f"model {spec.path} does not fit on {device}: set model.device_map=auto or"
            " model.dtype=bfloat16"
        ) from error
    except (OSError, ValueError, ImportError, RuntimeError, KeyError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"model {spec.path} cannot be loaded: {reason}") from error
    # transformers fills what a checkpoint lacks with random numbers and goes on.
    if found["missing_keys"]:
        some = ", ".join(sorted(found["missing_keys"])[:3])
        raise UserError(
            f"model {spec.path} lacks {len(found['missing_keys'])} of its weights ({some}, ...):"
            " fetch it again"
        )
    return network, tokenizer


def _device(spec: ModelSpec) -> torch.device:
    import torch

    name = spec.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"model.device {name}: no CUDA device here; use cpu or auto")
    return torch.device(name)


def _gguf_file(spec: ModelSpec) -> Path:
    if spec.kind == "package":
        return packaged_gguf(spec.path.removeprefix("package:"))
    return Path(spec.path).expanduser().resolve()


def _read_config(spec: ModelSpec) -> dict[str, Any]:
    """config.json of a folder or hub id."""
    here = Path(spec.path).expanduser() / "config.json"
    path = _hub_config(spec.path, spec.revision) if spec.kind == "hub" else here
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"model folder {spec.path} has no config.json") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise UserError(f"{path} is not a JSON object")
    return config


@functools.lru_cache(maxsize=8)
def _hub_config(path: str, revision: str | None) -> Path:
    """config.json of a hub model in the client's cache, fetched where the hub can be reached.

    Asked once per process: offline, the client retries for 20 s before it turns to its cache.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError

    try:
        return Path(hf_hub_download(path, "config.json", revision=revision))
    except GatedRepoError as error:
        raise UserError(
            f"model {path} is gated: accept its licence on the hub, then run `hf auth login`"
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError, ValueError) as error:
        at = f" at revision {revision}" if revision else ""
        raise UserError(
            f"model {path}{at} is no local folder and could not be fetched from the hub"
            f" ({type(error).__name__}): check the name and the network"
        ) from error


def _folder_weights(folder: Path) -> dict[str, Any]:
    """Count, bytes and a digest of (name, size, time) of a folder's weights and JSON files."""
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise UserError(f"model folder {folder} has no .safetensors file (pickles are not loaded)")
    files = [*weights, *sorted(folder.glob("*.json"))]
    facts = [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    digest = hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()
    size = sum(f.stat().st_size for f in weights)
    return {"files": len(weights), "bytes": size, "digest": digest}


def _plain(shape: RandomShape | Mapping[str, int]) -> dict[str, int]:
    return {f.name: getattr(shape, f.name) for f in fields(RandomShape)}


def _rescaled_beyond(config: Any) -> int | None:
    """Length at which a longrope or dynamic rotary changes the rotation of all positions."""
    rope = config.rope_parameters or {}
    kinds = rope.values() if all(isinstance(v, dict) for v in rope.values()) else [rope]
    for kind in kinds:
        if kind.get("rope_type") in ("longrope", "dynamic"):
            return int(
                kind.get("original_max_position_embeddings")
                or getattr(config, "original_max_position_embeddings", None)
                or config.max_position_embeddings
            )
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' progress bars and load reports, and give them back."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(ERROR)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
