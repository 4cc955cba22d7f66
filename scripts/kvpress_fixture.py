"""Which tokens kvpress 0.5.5 keeps, on a small Llama that the tests build again.

    python scripts/kvpress_fixture.py tests/fixtures/kvpress-0.5.5.json

kvpress pins an older transformers, so this runs in an environment of its own, without kvbench:

    python3.11 -m venv kvpress-env
    kvpress-env/bin/pip install kvpress==0.5.5 transformers==5.2.0 torch==2.13.0
    kvpress-env/bin/python scripts/kvpress_fixture.py tests/fixtures/kvpress-0.5.5.json

The networks, their prompts and the tokenizer come from the functions below, which the tests call
too; the fixture records hashes of them. What is kept is written per layer and KV head as a
hexadecimal number whose bit p is set where position p is kept. Keys that a press rotated anew are
written for two rows of each head: the one behind the sinks, and the last.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

LLAMA: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
WEIGHTS_SEED = 20260101
# Standard deviation of attention logits is then about 2.5: far from uniform, and no weight
# reaches 1.0, where scores would tie.
WEIGHTS_SCALE = 0.2
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)
TEMPLATE_PREFIX = "<s>[user] "

SLIDING_WINDOW = 200

# Press, its settings, attention, prompt tokens, whether the prompt starts with a chat template.
Case = tuple[str, dict[str, Any], str, int, bool]
CASES: list[Case] = [
    *(
        (press, {"compression_ratio": removed}, attention, tokens, False)
        for press, attention in [
            ("SnapKVPress", "eager"),
            ("SnapKVPress", "sdpa"),
            ("StreamingLLMPress", "sdpa"),
            ("ObservedAttentionPress", "eager"),
            ("KnormPress", "sdpa"),
            ("TOVAPress", "eager"),
            ("TOVAPress", "sdpa"),
            ("ExpectedAttentionPress", "sdpa"),
            ("AdaKVPress(SnapKVPress)", "sdpa"),
            ("AdaKVPress(ExpectedAttentionPress)", "sdpa"),
        ]
        for tokens, removed in [(300, 0.5), (777, 0.75)]
    ),
    ("SnapKVPress", {"compression_ratio": 0.9, "window_size": 8}, "eager", 777, False),
    ("StreamingLLMPress", {"compression_ratio": 0.9, "n_sink": 16}, "sdpa", 777, False),
    ("ExpectedAttentionPress", {"compression_ratio": 0.75, "epsilon": 0.02}, "sdpa", 777, False),
    (
        "ExpectedAttentionPress",
        {"compression_ratio": 0.75, "use_covariance": False, "use_vnorm": False},
        "sdpa",
        777,
        False,
    ),
    (
        "AdaKVPress(SnapKVPress)",
        {"compression_ratio": 0.75, "window_size": 8, "alpha_safeguard": 0.99},
        "sdpa",
        777,
        False,
    ),
    (
        "AdaKVPress(ExpectedAttentionPress)",
        {"compression_ratio": 0.5, "alpha_safeguard": 0.9},
        "sdpa",
        300,
        False,
    ),
    # A pyramid, one whose first layer meets the prompt's length, a short window's, a flat one.
    ("PyramidKVPress", {"compression_ratio": 0.5}, "eager", 2600, False),
    ("PyramidKVPress", {"compression_ratio": 0.25}, "eager", 1900, False),
    ("PyramidKVPress", {"compression_ratio": 0.75, "window_size": 8}, "eager", 777, False),
    ("PyramidKVPress", {"compression_ratio": 0.75}, "eager", 777, False),
    # One pass and several, with a chat template and without, layers that compete and that do not.
    ("KVzipPress", {"compression_ratio": 0.5}, "sdpa", 300, False),
    ("KVzipPress", {"compression_ratio": 0.75}, "sdpa", 700, True),
    ("KVzipPress", {"compression_ratio": 0.75, "chunk_size": 128}, "sdpa", 700, False),
    ("KVzipPress", {"compression_ratio": 0.75, "chunk_size": 128}, "sdpa", 700, True),
    ("KVzipPress", {"compression_ratio": 0.5, "layerwise": True}, "sdpa", 300, True),
]

SINKS = 4
_HALF = [(300, 0.5), (777, 0.75)]
# Cases of another kind: a case as above, and what is told of it beside.
MORE_CASES: list[tuple[Case, dict[str, str]]] = [
    *(
        (("KeyRerotationPress(StreamingLLMPress)", {"compression_ratio": r}, "sdpa", t, False), {})
        for t, r in _HALF
    ),
    *(
        ((press, {"compression_ratio": r}, "sdpa", t, False), {"dtype": "bfloat16"})
        for press in ("KnormPress", "StreamingLLMPress", "SnapKVPress", "ExpectedAttentionPress")
        for t, r in _HALF
    ),
    # Where attention is eager, presses read its weights, which no query has outside its window.
    *(
        ((press, {"compression_ratio": r}, attention, t, False), {"network": "mistral"})
        for press, attention in [
            ("SnapKVPress", "eager"),
            ("TOVAPress", "eager"),
            ("KnormPress", "sdpa"),
            ("ExpectedAttentionPress", "sdpa"),
        ]
        for t, r in _HALF
    ),
    # So few rows that a head's safeguard would be none: each keeps one.
    (
        (
            "AdaKVPress(KnormPress)",
            {"compression_ratio": 0.995, "alpha_safeguard": 0.05},
            "sdpa",
            300,
            False,
        ),
        {},
    ),
]


def network(kind: str = "llama", dtype: str = "float32") -> Any:
    """A Llama, or a Mistral of its weights whose attention slides; on the CPU.

    Weights are drawn in the order of their sorted names, in float32; norms are 1.
    """
    import transformers

    if kind == "llama":
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    else:
        config = transformers.MistralConfig(**LLAMA, sliding_window=SLIDING_WINDOW)
        model = transformers.MistralForCausalLM(config)
    model.eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(WEIGHTS_SEED)
    for name, weight in sorted(model.named_parameters()):
        if name.endswith("norm.weight"):
            weight.fill_(1.0)
        else:
            weight.copy_(torch.randn(weight.shape, generator=generator) * WEIGHTS_SCALE)
    return model.to(getattr(torch, dtype))


def digest(*tensors: torch.Tensor) -> str:
    """32 hex digits of the tensors' bytes."""
    hashed = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        hashed.update(tensor.detach().contiguous().numpy().tobytes())
    return hashed.hexdigest()


def weights_digest(model: Any) -> str:
    """32 hex digits of a network's weights."""
    return digest(*(weight for _, weight in sorted(model.named_parameters())))


def tokenizer(*, chat_template: bool) -> Any:
    """One token per byte behind <s>, </s> and <pad>; nothing is added on its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<s>", "</s>", "<pad>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*special, *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    if chat_template:
        fast.chat_template = CHAT_TEMPLATE
    return fast


def prompt(tokens: int, *, chat_template: bool) -> torch.Tensor:
    """[tokens] ids, seeded by their number; the first are the template's if asked for.

    No id comes twice: in the first layer equal tokens have keys of equal norm, and score the same.
    """
    generator = torch.Generator().manual_seed(tokens)
    ids = 3 + torch.randperm(LLAMA["vocab_size"] - 3, generator=generator)[:tokens]
    if chat_template:
        prefix = tokenizer(chat_template=True).encode(TEMPLATE_PREFIX, add_special_tokens=False)
        ids[: len(prefix)] = torch.tensor(prefix)
    return ids


def make_press(name: str, settings: dict[str, Any]) -> Any:
    """A press by name; `Outer(Inner)` wraps, and takes what settings it has for itself."""
    import kvpress

    outer, _, inner = name.rstrip(")").partition("(")
    cls = getattr(kvpress, outer)
    if not inner:
        return cls(**settings)
    own = {f.name for f in dataclasses.fields(cls)}
    rest = {k: v for k, v in settings.items() if k not in own}
    return cls(make_press(inner, rest), **{k: v for k, v in settings.items() if k in own})


def stated_settings(press: Any) -> dict[str, Any]:
    """Every field of a press, defaults included; a wrapped press's beside its wrapper's."""
    found = {f.name: getattr(press, f.name) for f in dataclasses.fields(press)}
    wrapped = found.pop("press", None)
    return {**(stated_settings(wrapped) if wrapped else {}), **found}


def kept_positions(
    model: Any, press: Any, ids: torch.Tensor
) -> tuple[list[list[list[int]]], list[torch.Tensor]]:
    """Positions kept per layer and KV head, ascending, and the keys that are held, per layer."""
    from transformers import DynamicCache

    whole, cache = DynamicCache(), DynamicCache()
    for layer in model.model.layers:
        # Left over from the case before, where attention is eager.
        layer.self_attn.masked_key_indices = None
    with torch.inference_mode():
        model(input_ids=ids[None], past_key_values=whole)
        with press(model):
            model(input_ids=ids[None], past_key_values=cache)
    kept = []
    for i, layer in enumerate(model.model.layers):
        masked = layer.self_attn.masked_key_indices
        full = whole.layers[i].keys[0]
        if masked is not None:
            hidden = torch.zeros(full.shape[:2], dtype=torch.bool)
            hidden[masked[1], masked[2]] = True
            kept.append([(~head).nonzero()[:, 0].tolist() for head in hidden])
            continue
        heads = []
        if type(press).__name__ == "KeyRerotationPress":  # whose values are as they were
            held, full = cache.layers[i].values[0], whole.layers[i].values[0]
        else:
            held = cache.layers[i].keys[0]
        for rows, all_rows in zip(held.float(), full.float(), strict=True):
            at = {row.numpy().tobytes(): p for p, row in enumerate(all_rows)}
            assert len(at) == len(ids), "two tokens have the same key"
            heads.append(sorted(at[row.numpy().tobytes()] for row in rows))
        kept.append(heads)
    return kept, [layer.keys[0] for layer in cache.layers]


def bits(positions: list[int]) -> str:
    """Positions as a hexadecimal number: bit p is set where p is kept."""
    return f"{sum(1 << p for p in positions):x}"


def main() -> None:
    """Run every case and write what was kept."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT.json")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    models = {
        (kind, dtype): network(kind, dtype)
        for kind, dtype in [("llama", "float32"), ("llama", "bfloat16"), ("mistral", "float32")]
    }
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        for chat_template in (False, True):
            tokenizer(chat_template=chat_template).save_pretrained(f"{folder}/{chat_template}")
        every = [*((case, dict[str, str]()) for case in CASES), *MORE_CASES]
        for (name, settings, attention, tokens, chat_template), told in every:
            model = models[told.get("network", "llama"), told.get("dtype", "float32")]
            model.set_attn_implementation(attention)
            model.config._name_or_path = f"{folder}/{chat_template}"  # where KVzip looks for it
            press = make_press(name, settings)
            ids = prompt(tokens, chat_template=chat_template)
            kept, keys = kept_positions(model, press, ids)
            case: dict[str, Any] = {"press": name, **told}
            cases.append(
                {
                    **case,
                    "settings": stated_settings(press),
                    "attention": attention,
                    "tokens": tokens,
                    "chat_template": chat_template,
                    "prompt": digest(ids),
                    "kept": [[bits(head) for head in layer] for layer in kept],
                }
            )
            if name.startswith("KeyRerotationPress"):
                cases[-1]["keys"] = [
                    [[round(float(x), 4) for x in rows[[SINKS, -1]].flatten()] for rows in layer]
                    for layer in keys
                ]
            print(name, settings, tokens, [[len(h) for h in x] for x in kept], file=sys.stderr)
    made_with = {p: version(p) for p in ("kvpress", "transformers", "torch")}
    made_with["weights"] = weights_digest(models["llama", "float32"])
    text = json.dumps({**made_with, "cases": cases}, indent=1)
    out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
