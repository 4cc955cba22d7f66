"""A tiny random network of every covered family: windows, softcaps and rotaries at work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from kvbench.model.random import byte_tokenizer

_COMMON: dict[str, Any] = {
    "vocab_size": 264,  # of the byte tokenizer
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]

FAMILY_SETTINGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 24},
    "qwen2": {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1},
    "qwen3": {"head_dim": 32},
    "phi3": {
        "sliding_window": 24,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
        },
    },
    "gemma2": {
        "head_dim": 16,
        "sliding_window": 24,
        "layer_types": _MIXED,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 10.0,
        "query_pre_attn_scalar": 24,
    },
    "gemma3_text": {
        "head_dim": 16,
        "sliding_window": 24,
        "layer_types": _MIXED,
        "query_pre_attn_scalar": 24,
    },
    "ministral": {"head_dim": 16, "sliding_window": 24, "layer_types": _MIXED},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 24},
    "qwen2_moe": {
        **_EXPERTS,
        "shared_expert_intermediate_size": 48,
        "use_sliding_window": True,
        "sliding_window": 24,
        "max_window_layers": 1,
    },
    "qwen3_moe": {**_EXPERTS, "head_dim": 32},
    "gemma": {"head_dim": 32},
    "glm": {"head_dim": 16},
    "glm4": {"head_dim": 16},
    "glm4_moe": {
        "head_dim": 32,
        "use_qk_norm": True,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "first_k_dense_replace": 1,
    },
    "olmo2": {},
    "olmo3": {
        "sliding_window": 24,
        "layer_types": _MIXED,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            },
        },
    },
    "granite": {
        "attention_multiplier": 0.4,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.7,
        "logits_scaling": 2.0,
    },
    "cohere2": {"sliding_window": 24, "layer_types": _MIXED},
    "exaone4": {"sliding_window": 24, "layer_types": _MIXED},
    "smollm3": {"no_rope_layers": [0, 1, 1]},
    "starcoder2": {"sliding_window": 24},
}
"""By `model_type`."""

TESTED_SLOWLY = (
    "ministral",
    "mixtral",
    "qwen3_moe",
    "gemma",
    "glm",
    "glm4_moe",
    "olmo2",
    "exaone4",
    "starcoder2",
)
"""Families that compute nothing which no other one does: most tests of them are slow tests."""

WITHOUT_ROPE = {"cohere2": 1, "exaone4": 1, "smollm3": 0}
"""The layer of these networks that turns no keys."""


def window_of(module: Any, given: dict[str, Any]) -> int | None:
    """The window of a layer whose attention function was given these words.

    qwen2_moe's function is not given the window that its mask has.
    """
    window: int | None = given.get("sliding_window", getattr(module, "sliding_window", None))
    return window


def random_network(family: str, seed: int = 0, **changes: Any) -> Any:
    """A float32 network of the family with eager attention; same seed, same weights."""
    config = AutoConfig.for_model(family, **{**_COMMON, **FAMILY_SETTINGS[family], **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return network.requires_grad_(False).eval()


def saved(folder: Path, family: str = "llama") -> Path:
    """The folder, holding the family's random network and a byte tokenizer."""
    random_network(family).save_pretrained(folder)
    byte_tokenizer(512).save_pretrained(folder)
    return folder


def saved_wrapper(folder: Path, old_names: bool) -> Any:
    """Save a random Gemma 3 of texts and pictures to the folder, and return it.

    Args:
        folder: gets a byte tokenizer too.
        old_names: name the weights as Google's checkpoints do.
    """
    text = {**_COMMON, **FAMILY_SETTINGS["gemma3_text"]}
    side = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    pictures = {**side, "num_hidden_layers": 1, "image_size": 16, "patch_size": 8}
    config = AutoConfig.for_model(
        "gemma3", text_config=text, vision_config=pictures, mm_tokens_per_image=1
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    network.generation_config.eos_token_id = [1, 9]
    network.save_pretrained(folder)
    byte_tokenizer(512).save_pretrained(folder)
    weights = {}
    for name, value in load_file(folder / "model.safetensors").items():
        name = name.replace("language_model.model.", "language_model.")
        if not name.startswith("model."):
            name = f"model.{name}"
        if old_names:
            name = name.replace("model.language_model.", "language_model.model.")
            name = name.removeprefix("model.")
        weights[name] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return network.requires_grad_(False).eval()


def rescaling_network(rope_type: str) -> Any:
    """A random network of 256 positions that changes its rotation beyond 64."""
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
    return AutoModelForCausalLM.from_config(config)
