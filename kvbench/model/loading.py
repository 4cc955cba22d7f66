"""Models: loading one once per process, with its tokenizer and geometry.

Torch-free at import, like the specs it loads from.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from logging import ERROR
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from kvbench.base.errors import UserError
from kvbench.model.chat import settle_template
from kvbench.model.gguf import converted
from kvbench.model.random import byte_tokenizer, random_llama
from kvbench.model.spec import (
    WRAPPERS,
    ModelSpec,
    gguf_file,
    model_identity,
    refuse_uncovered,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from kvbench.model.rotary import RotaryTables

__all__ = [
    "Geometry",
    "LoadedModel",
    "ModelSpec",
    "load",
    "load_tokenizer",
    "model_identity",
    "weight_bytes",
    "wrap",
]


def _no_tables() -> RotaryTables:
    # torch is imported only where a model is loaded.
    from kvbench.model.rotary import RotaryTables

    return RotaryTables()


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
    rotary_tables: RotaryTables = field(default_factory=_no_tables)
    """cos and sin of the positions seen so far, shared by all prompts."""

    @property
    def device(self) -> torch.device:
        """Where token ids go in."""
        from kvbench.model.hooks import device_of

        return device_of(self.network.get_input_embeddings())

    @functools.cached_property
    def layer_devices(self) -> tuple[torch.device, ...]:
        """Where each layer computes, and what is kept of it lies."""
        from kvbench.model.hooks import attention_layers, device_of

        return tuple(device_of(layer) for layer in attention_layers(self.network))

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Every device that the model computes on, each once; token ids go into the first."""
        return tuple(dict.fromkeys([self.device, *self.layer_devices]))

    def wait(self) -> None:
        """Return once every device has done what it was given; at once on the CPU.

        A clock that is read without it tells when work was handed to a GPU, not when it was done.
        """
        import torch

        for device in self.devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    @property
    def fingerprint(self) -> str:
        """32 hex digits that change with the weights, their revision or dtype."""
        text = json.dumps(self.identity, sort_keys=True, allow_nan=False)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def most_tokens(self, prefilled_tokens: int) -> int:
        """Tokens that a prefill and what follows it may be at most, to stay within the context.

        Fewer where a model with longrope would rotate the prefill's keys otherwise from there on.
        """
        g = self.geometry
        if g.rescaled_beyond is None or prefilled_tokens > g.rescaled_beyond:
            return g.context
        return min(g.context, g.rescaled_beyond)

    def check_length(self, prefilled_tokens: int, later_tokens: int = 0) -> None:
        """Refuse a prompt that the model has no positions for.

        Generation may run past the context, as in the published LLaMA-3 setting (7950 prompt and
        512 generated tokens of 8192): rotary positions go on.

        Args:
            prefilled_tokens: tokens of the prefill.
            later_tokens: tokens fed and generated after it.

        Raises:
            UserError: the prompt exceeds the context, or crosses the length at which a longrope
                model changes its rotation (keys before and after would disagree).
        """
        total = prefilled_tokens + later_tokens
        g = self.geometry
        if prefilled_tokens > g.context:
            raise UserError(
                f"prompt of {prefilled_tokens} tokens exceeds the context of {self.spec.name}"
                f" ({g.context}): set model.max_input_tokens lower"
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
    from kvbench.model.attention import IMPLEMENTATION, register
    from kvbench.model.hooks import attention_layers, feed_forward_in_blocks

    config = network.config
    refuse_uncovered(spec.path, config.model_type)
    register()
    _set_arithmetic()
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
    feed_forward_in_blocks(network)
    generation = getattr(network.generation_config, "eos_token_id", None)
    ids = generation if isinstance(generation, list) else [generation]
    eos_ids = frozenset(int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None)
    return LoadedModel(network, tokenizer, spec, geometry, eos_ids, dict(identity))


def _set_arithmetic() -> None:
    """Set what torch keeps for the whole process, as results and timings need it.

    - Products of float32 are float32's, not TF32's: which tokens are kept hangs on small gaps.
    - cuDNN's attention is left out: it plans anew, for tens of ms, for each shape it meets, and
      caches and prompts bring a new one at every step.
    """
    import torch

    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.enable_cudnn_sdp(False)


_loaded: dict[ModelSpec, LoadedModel] = {}
_one_at_a_time = RLock()


def forget_loaded() -> None:
    """Hold no model any longer: the next `load` reads it again."""
    with _one_at_a_time:
        _loaded.clear()


def load(spec: ModelSpec) -> LoadedModel:
    """Load a model, or return it if it was the last one loaded.

    One model is held at a time: a sweep over models frees one before it loads the next.

    Raises:
        UserError: it cannot be found, read, fitted on its device, or is not covered.
    """
    with _one_at_a_time:
        if spec not in _loaded:
            _loaded.clear()
            _loaded[spec] = _load(spec)
        return _loaded[spec]


def weight_bytes(spec: ModelSpec) -> int:
    """Bytes that a model's weights take on its devices, found without loading them.

    Raises:
        UserError: it cannot be found or read.
    """
    import torch

    identity = model_identity(spec)
    dtype = getattr(torch, identity["dtype"], torch.float32)
    with quiet_transformers(), torch.device("meta"):  # built of its config, without memory
        if spec.kind == "random":
            network = random_llama(spec.random_shape)
        else:
            network = _network_of_config(spec, identity)
    return sum(int(weight.numel()) for weight in network.parameters()) * int(dtype.itemsize)


def _network_of_config(spec: ModelSpec, identity: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    where = _where(_checkpoint(spec, identity), identity["revision"])
    try:
        config = AutoConfig.from_pretrained(**where, trust_remote_code=False)
        return AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    except Exception as error:  # transformers checks little of what a folder holds
        raise _unloadable(spec, error) from error


@functools.lru_cache(maxsize=1)
def load_tokenizer(spec: ModelSpec) -> Any:
    """The tokenizer of a model, without its weights.

    Raises:
        UserError: it cannot be found or read.
    """
    if spec.kind == "random":
        return byte_tokenizer(spec.random_shape.context)
    identity = model_identity(spec)
    with quiet_transformers():
        return _tokenizer_from(spec, _checkpoint(spec, identity), identity["revision"])


def context_of(spec: ModelSpec) -> int:
    """Tokens that a model has positions for, found without its weights.

    Raises:
        UserError: it cannot be found or read.
    """
    if spec.context is not None:
        return spec.context
    if spec.kind == "random":
        return spec.random_shape.context
    from transformers import AutoConfig

    identity = model_identity(spec)
    where = _where(_checkpoint(spec, identity), identity["revision"])
    try:
        with quiet_transformers():
            config: Any = AutoConfig.from_pretrained(**where, trust_remote_code=False)
        return int(config.get_text_config().max_position_embeddings)
    except Exception as error:  # transformers checks little of what a folder holds
        raise _unloadable(spec, error) from error


def _checkpoint(spec: ModelSpec, identity: Mapping[str, Any]) -> str:
    """Folder or hub id that transformers reads; a GGUF file is converted first, once."""
    if spec.kind not in ("package", "gguf"):
        return spec.path
    key = hashlib.blake2b(json.dumps(identity["weights"]).encode()).hexdigest()
    return str(converted(gguf_file(spec), key, identity["dtype"]))


def _tokenizer_from(spec: ModelSpec, folder: str, revision: str | None) -> Any:
    from transformers import AutoTokenizer

    where = _where(folder, revision)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(**where, trust_remote_code=False)
    except Exception as error:  # transformers checks little of what a folder holds
        raise _unloadable(spec, error) from error
    settle_template(tokenizer, dict(spec.chat_template_kwargs))
    return tokenizer


def _where(folder: str, revision: str | None) -> dict[str, str]:
    if revision is not None:
        return {"pretrained_model_name_or_path": folder, "revision": revision}
    return {"pretrained_model_name_or_path": str(Path(folder).expanduser())}


def _unloadable(spec: ModelSpec, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:300]
    return UserError(f"model {spec.path} cannot be loaded: {reason}")


def _load(spec: ModelSpec) -> LoadedModel:
    import torch

    from kvbench.model.attention import register

    identity = model_identity(spec)
    register()
    device = _device(spec)
    with quiet_transformers():
        if spec.kind == "random":
            network = _random_network(spec, getattr(torch, identity["dtype"]), device)
            return wrap(network, load_tokenizer(spec), spec, identity)
        folder, revision = _checkpoint(spec, identity), identity["revision"]
        tokenizer = _tokenizer_from(spec, folder, revision)
        network = _network_from(spec, folder, revision, device)
    try:
        return wrap(network, tokenizer, spec, identity)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise _unloadable(spec, error) from error  # such as a config without heads


def _random_network(spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> Any:
    """A random Llama; small ones have the same weights on every device."""
    import torch

    if not spec.random_weights:
        return random_llama(spec.random_shape).to(dtype).to(device)
    # Billions of weights are made where they will be used, once.
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return random_llama(spec.random_shape)
    finally:
        torch.set_default_dtype(before)


def _network_from(spec: ModelSpec, folder: str, revision: str | None, device: torch.device) -> Any:
    """Network of a folder or hub id; safetensors only, no code from the repo."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    dtype = "auto" if spec.dtype == "auto" else getattr(torch, spec.dtype)
    where = _where(folder, revision)
    try:
        config: Any = AutoConfig.from_pretrained(**where, trust_remote_code=False)
        text_only: dict[str, Any] = {}
        if config.model_type in WRAPPERS:
            text_only = {"config": config.get_text_config(), "key_mapping": _OF_THE_TEXT_MODEL}
        both: Any = AutoModelForCausalLM.from_pretrained(
            **where,
            **text_only,
            output_loading_info=True,
            dtype=dtype,
            device_map=spec.device_map or {"": device},
            attn_implementation="kvbench",
            use_safetensors=True,
            trust_remote_code=False,
        )
        network, found = both
    except torch.cuda.OutOfMemoryError as error:
        raise UserError(
            f"model {spec.path} does not fit on {device}: set model.device_map=auto or"
            " model.dtype=bfloat16"
        ) from error
    except Exception as error:  # transformers checks little of what a folder holds
        raise _unloadable(spec, error) from error
    # transformers fills what a checkpoint lacks with random numbers and goes on.
    if found["missing_keys"]:
        some = ", ".join(sorted(found["missing_keys"])[:3])
        raise UserError(
            f"model {spec.path} lacks {len(found['missing_keys'])} of its weights ({some}, ...):"
            " fetch it again"
        )
    if spec.device_map is not None and not spec.allow_offload:
        _refuse_offload(spec, getattr(network, "hf_device_map", {"": network.device}))
    return network


_OF_THE_TEXT_MODEL = {
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head": "lm_head",
    r"^model\.language_model\.": "model.",
}
"""Names of weights in a wrapper's checkpoint, old and new -> those of its text model."""


def _refuse_offload(spec: ModelSpec, device_map: Mapping[str, Any]) -> None:
    """Refuse a model with parts on the disk, or on the CPU where there are GPUs.

    transformers puts there without a word what does not fit; every token then waits for them.
    """
    import torch

    places = {name: str(place) for name, place in device_map.items()}
    has_gpu = torch.cuda.is_available() or not set(places.values()) <= {"cpu", "disk"}
    slow = {"cpu", "disk"} if has_gpu else {"disk"}
    offloaded = [name for name, place in places.items() if place in slow]
    if offloaded:
        where = " and ".join(sorted({places[name] for name in offloaded}))
        first = offloaded[0] or "all of it"
        raise UserError(
            f"model {spec.path} does not fit: model.device_map={spec.device_map} leaves"
            f" {len(offloaded)} of {len(places)} parts ({first}, ...) on the {where}: take more or"
            " larger GPUs, or model.allow_offload=true to fetch them for every token"
        )


def _device(spec: ModelSpec) -> torch.device:
    import torch

    name = spec.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"model.device {name}: no CUDA device here; use cpu or auto")
    return torch.device(name)


def _rescaled_beyond(config: Any) -> int | None:
    """Length at which a longrope or dynamic rotary changes the rotation of all positions."""
    rope = config.rope_parameters or {}
    # By the type of a layer where they differ; types without RoPE have none.
    for kind in [rope, *(v for v in rope.values() if isinstance(v, dict))]:
        if kind.get("rope_type") in ("longrope", "dynamic"):
            return int(
                kind.get("original_max_position_embeddings")
                or getattr(config, "original_max_position_embeddings", None)
                or config.max_position_embeddings
            )
    return None


@contextmanager
def quiet_transformers() -> Iterator[None]:
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
