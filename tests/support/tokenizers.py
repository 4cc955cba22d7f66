"""Small tokenizers of the kinds that models come with."""

from __future__ import annotations

import json
from typing import Any

from kvbench.model.random import byte_tokenizer

CHATML = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
THINKING = (  # as Qwen3's and SmolLM3's
    "<|user|>{{ messages[0]['content'] }}<|end|><|assistant|>\n"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{- '\n<think>\n\n</think>\n\n' }}{% else %}{{ '\n' }}{% endif %}"
)
TODAY = (  # as Llama-3.2's, SmolLM3's and Mistral's
    "{% if strftime_now is defined %}{% set d = strftime_now('%d %b %Y') %}{% endif %}{{ d }}|"
    "{{ strftime_now('%d %B %Y') }}|{{ strftime_now('%Y-%m-%d') }} {{ messages[0]['content'] }}"
)
STRIPPING = CHATML.replace("m['content']", "m['content'] | trim")


def byte_bpe(chat_template: str | None = None) -> Any:
    """Byte-level BPE with merges learned from a line, which puts <s> in front of every text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["Now answer the question of the text in one word. "] * 9, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        chat_template=chat_template,
        model_max_length=64,
    )


def metaspace_bpe() -> Any:
    """As LLaMA-2's: a mark for each space, one put before the text, the first dropped again."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=60, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
    )
    backend.train_from_iterator(["Now answer the question of the text in one word."] * 9, trainer)
    parts = json.loads(backend.to_str())
    vocabulary = parts["model"]["vocab"]
    for byte in range(256):  # what a character outside the vocabulary becomes
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    backend = Tokenizer.from_str(json.dumps(parts))
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


TOKENIZERS = {
    "bytes": byte_tokenizer(8192),
    "merges": byte_bpe(CHATML),
    "stripping": byte_bpe(STRIPPING),
    "metaspace": metaspace_bpe(),
}
