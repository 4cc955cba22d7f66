"""A random Llama with a byte tokenizer, built in code: the model of tests, needing no download."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvbench.base.checks import check_whole_number
from kvbench.base.errors import UserError

_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)

_BYTE_VOCABULARY = 264
"""256 bytes and three special tokens, rounded up."""


@dataclass(frozen=True)
class RandomShape:
    """Shape and seed of a random Llama."""

    layers: int = 3
    query_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    context: int = 8192
    """Tokens it has positions for."""
    seed: int = 0
    """Of the weights."""
    intermediate: int | None = None
    """Width of the feed-forward layers; None: twice the hidden size."""
    vocabulary: int | None = None
    """Tokens with an embedding; None: those of the byte tokenizer."""

    def __post_init__(self) -> None:
        """Refuse what no Llama can have."""
        for name in ("layers", "query_heads", "kv_heads", "head_dim", "context"):
            check_whole_number(f"model.random.{name}", getattr(self, name))
        for name in ("intermediate", "vocabulary"):
            check_whole_number(f"model.random.{name}", getattr(self, name), optional=True)
        check_whole_number("model.random.seed", self.seed, least=0)
        if self.query_heads % self.kv_heads:
            raise UserError(
                f"model.random.kv_heads {self.kv_heads} does not divide query_heads"
                f" {self.query_heads}: choose a divisor"
            )
        if self.head_dim % 2:
            raise UserError(f"model.random.head_dim {self.head_dim} is odd: RoPE needs pairs")


def byte_tokenizer(context: int) -> Any:
    """A tokenizer with one token per byte, and <s>, </s> and <pad>; it adds <s> itself."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<s>", "</s>", "<pad>"]
    vocabulary = {token: i for i, token in enumerate([*special, *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    tokenizer.model_max_length = context
    return tokenizer


def random_llama(shape: RandomShape) -> Any:
    """A LlamaForCausalLM of this shape, where torch makes tensors; same seed, same weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    hidden = shape.query_heads * shape.head_dim
    config = LlamaConfig(
        vocab_size=shape.vocabulary or _BYTE_VOCABULARY,
        hidden_size=hidden,
        intermediate_size=shape.intermediate or 2 * hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.query_heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.context,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        # The usual 0.02 makes attention of so small a model nearly uniform; every method then
        # keeps ties, and tests would compare nothing.
        initializer_range=0.2 if shape.vocabulary is None else 0.02,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(shape.seed)
        return LlamaForCausalLM(config)
