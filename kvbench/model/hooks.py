"""How kvbench reaches into transformers' decoders: the names it takes for granted stand here alone.

An attention module has `layer_idx` and stands as `self_attn` in a decoder layer; the module that
defines its class has `apply_rotary_pos_emb`, which every layer calls but those `has_rope` knows; a
decoder layer takes `position_ids` and `position_embeddings`. Where accelerate fetches a module's
weights from elsewhere, `_hf_hook` of the module says where it computes. What a layer does to each
token after attending is its `mlp`.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

SEEN = ("5.18", "5.23")
"""The first and the last release of transformers in which these names were seen."""


BLOCK = 1024
"""Tokens at most that a feed-forward layer works on at once."""


class RotaryRecorder:
    """Queries and keys before RoPE, and the tables, of the layer that is about to attend."""

    def __init__(self) -> None:
        """Start with nothing recorded."""
        self.fired = 0
        self._last: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
        self._unturned = (torch.empty(0), torch.empty(0))

    def record(self, q_pre: Tensor, k_pre: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Keep the operands of one rotation until the layer attends."""
        self.fired += 1
        self._last = (q_pre, k_pre, cos, sin)

    def record_unturned(self, q: Tensor, k: Tensor) -> None:
        """Keep the operands of a layer without RoPE: its tables turn by no angle."""
        if self._last is not None:
            raise RuntimeError("a layer said to have no RoPE called apply_rotary_pos_emb")
        shape = (1, *k.shape[2:])
        cos, sin = self._unturned
        if cos.shape != shape or cos.dtype != k.dtype or cos.device != k.device:
            cos, sin = self._unturned = k.new_ones(shape), k.new_zeros(shape)
        self._last = (q, k, cos, sin)

    @property
    def queries(self) -> Tensor:
        """Queries before RoPE [B, Q, t, D] of the current layer, until `take`."""
        if self._last is None:
            raise RuntimeError("an attention layer did not call apply_rotary_pos_emb")
        return self._last[0]

    def take(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return (k_pre [B, G, t, D], cos [B or 1, t, rd], sin) of the current layer, once.

        Raises:
            RuntimeError: the layer attended without a rotation since the last call.
        """
        if self._last is None:
            raise RuntimeError("an attention layer did not call apply_rotary_pos_emb")
        taken, self._last = self._last[1:], None
        return taken


class _Active(threading.local):
    """What records in this thread: several may run forwards of one family at once."""

    recorder: RotaryRecorder | None = None


_active = _Active()
_wrapping = threading.Lock()
_wrapped: dict[ModuleType, tuple[Any, int]] = {}
"""Module of a family -> its own `apply_rotary_pos_emb`, and how many record through its wrapper."""


@contextmanager
def recording_pre_rope(network: nn.Module) -> Iterator[RotaryRecorder]:
    """Record each layer's operands of RoPE, for `take()` inside `attend`.

    Within the context `apply_rotary_pos_emb` of the module that defines the network's attention
    class is wrapped; it is restored whatever happens. Forwards of other threads are not recorded.

    Raises:
        RuntimeError: on leaving, if it did not fire once per layer with RoPE and forward.
    """
    layers = [m for m in attention_layers(network) if has_rope(m)]
    module = _family_module(network)
    recorder = RotaryRecorder()
    _wrap(module)
    before, _active.recorder = _active.recorder, recorder
    try:
        yield recorder
    finally:
        _active.recorder = before
        _unwrap(module)
    if layers and (recorder.fired == 0 or recorder.fired % len(layers)):
        raise RuntimeError(
            f"apply_rotary_pos_emb of {module.__name__} fired {recorder.fired} times"
            f" for {len(layers)} attention layers"
        )


def record_without_rope(layer: nn.Module, q: Tensor, k: Tensor) -> None:
    """Record what a layer without RoPE is about to attend with, where operands are recorded.

    Args:
        layer: the attention module; nothing is done for one with RoPE.
        q: [B, Q, t, D].
        k: [B, G, t, D], which are its keys before RoPE as well.
    """
    if _active.recorder is not None and not has_rope(layer):
        _active.recorder.record_unturned(q, k)


def has_rope(layer: nn.Module) -> bool:
    """Whether an attention module turns its queries and keys, by its family's own condition."""
    known: Any = layer
    match type(layer).__name__:
        case "SmolLM3Attention":
            return bool(known.use_rope)
        case "Cohere2Attention":
            return known.sliding_window is not None
        case "Exaone4Attention":
            return known.sliding_window is None or bool(known.is_sliding)
    return True


def _wrap(module: ModuleType) -> None:
    with _wrapping:
        original, users = _wrapped.get(module, (module.apply_rotary_pos_emb, 0))
        _wrapped[module] = (original, users + 1)
        if users:
            return

        @functools.wraps(original)
        def recording(
            q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *rest: Any, **named: Any
        ) -> Any:
            if _active.recorder is not None:
                _active.recorder.record(q, k, cos, sin)
            return original(q, k, cos, sin, *rest, **named)

        module.apply_rotary_pos_emb = recording  # type: ignore[attr-defined]


def _unwrap(module: ModuleType) -> None:
    with _wrapping:
        original, users = _wrapped.pop(module)
        if users > 1:
            _wrapped[module] = (original, users - 1)
        else:
            module.apply_rotary_pos_emb = original  # type: ignore[attr-defined]


def rotary_function(network: nn.Module) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The family's `apply_rotary_pos_emb` reduced to keys.

    Returns:
        (keys [B, H, n, D], cos [B, n, rd], sin [B, n, rd]) -> rotated keys [B, H, n, D]; bitwise
        what the model computes (partial rotary included; q and k norms come before it).
    """
    module = _family_module(network)
    with _wrapping:
        apply, _ = _wrapped.get(module, (module.apply_rotary_pos_emb, 0))

    def rotate(keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        no_queries = keys[:, :0]
        rotated: Tensor = apply(no_queries, keys, cos, sin)[1]
        return rotated

    return rotate


def attention_layers(network: nn.Module) -> list[nn.Module]:
    """The self-attention modules of a decoder, by `layer_idx`."""
    found = [
        m
        for m in network.modules()
        if type(m).__name__.endswith("Attention") and isinstance(getattr(m, "layer_idx", None), int)
    ]
    return sorted(found, key=lambda m: int(m.layer_idx))  # type: ignore[arg-type]


def device_of(module: nn.Module) -> torch.device:
    """Where a module computes: where its weights lie, unless they are offloaded and fetched."""
    for part in module.modules():
        hook = getattr(part, "_hf_hook", None)
        for one in getattr(hook, "hooks", (hook,)):  # accelerate chains several in one
            device = getattr(one, "execution_device", None)
            if device is not None:
                return torch.device(device)
    return next(module.parameters()).device


def _family_module(network: nn.Module) -> ModuleType:
    """The transformers module that defines the network's attention class."""
    layers = attention_layers(network)
    if not layers:
        raise RuntimeError(f"{type(network).__name__} has no attention layers")
    return sys.modules[type(layers[0]).__module__]


class TokenFeed(Protocol):
    """Chooses which tokens each decoder layer is fed."""

    def feed(self, hidden_states: Tensor) -> Tensor:
        """Return the hidden states [1, n, .] of the tokens that the next layer is fed, in order."""
        ...

    @property
    def positions(self) -> Tensor:
        """[n] original positions of these tokens."""
        ...


@contextmanager
def feeding_kept_tokens(network: nn.Module, feed: TokenFeed) -> Iterator[None]:
    """Feed each decoder layer only the tokens that `feed` has kept.

    A decoder layer is the module that holds an attention layer as `self_attn`; its hidden states,
    position ids and rotary tables are gathered before it runs.
    """
    attention = set(attention_layers(network))
    decoders = [m for m in network.modules() if getattr(m, "self_attn", None) in attention]
    assert len(decoders) == len(attention), "an attention layer lies outside a decoder layer"

    def gathered(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if named.get("kvbench") is not feed:  # a forward of another thread
            return None
        hidden_states = feed.feed(args[0])
        named = dict(named)
        if named.get("position_ids") is not None:
            named["position_ids"] = _gathered(named["position_ids"], feed.positions)
        cos, sin = named["position_embeddings"]
        named["position_embeddings"] = (
            _gathered(cos, feed.positions),
            _gathered(sin, feed.positions),
        )
        return (hidden_states, *args[1:]), named

    handles = [m.register_forward_pre_hook(gathered, with_kwargs=True) for m in decoders]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _gathered(of_positions: Tensor, positions: Tensor) -> Tensor:
    """Rows [., n, ...] of positions; on their own device, which may be the layer before's."""
    return of_positions[:, positions.to(of_positions.device)]


def feed_forward_in_blocks(network: nn.Module) -> None:
    """Have a decoder's feed-forward layers work on blocks of a long prompt; safe to call again.

    They treat each token alone and hold several times its hidden state. Only those made of plain
    linear layers: a router's experts would be given other numbers of tokens.
    """
    for mlp in feed_forwards(network):
        if is_plain(mlp) and not isinstance(mlp.forward, functools.partial):
            mlp.forward = functools.partial(_in_blocks, mlp.forward)


def feed_forwards(network: nn.Module) -> list[nn.Module]:
    """The feed-forward layer of each decoder layer, in model order."""
    attention = set(attention_layers(network))
    decoders = [m for m in network.modules() if getattr(m, "self_attn", None) in attention]
    found = [getattr(m, "mlp", None) for m in decoders]
    return [m for m in found if isinstance(m, nn.Module)]


def is_plain(feed_forward: nn.Module) -> bool:
    """Whether it is made of linear layers and activations alone, whose weights stay in place."""
    for part in feed_forward.modules():
        if getattr(getattr(part, "_hf_hook", None), "offload", False):
            return False  # each block would fetch them again
        weighs = any(True for _ in part.parameters(recurse=False))
        if isinstance(part, nn.ModuleList) or (weighs and not isinstance(part, nn.Linear)):
            return False
    return True


def _in_blocks(function: Callable[[Tensor], Tensor], hidden_states: Tensor) -> Tensor:
    """What a function of single tokens makes of hidden states [B, T, .], block by block.

    The blocks are equally long, so that none is of one token: the product of a matrix and a
    vector is rounded otherwise than the same row of a product of matrices.
    """
    tokens = hidden_states.flatten(0, 1)
    if len(tokens) <= BLOCK:
        return function(hidden_states)
    out = torch.empty_like(tokens)
    blocks = -(-len(tokens) // BLOCK)
    for some, done in zip(tokens.tensor_split(blocks), out.tensor_split(blocks), strict=True):
        done.copy_(function(some.unsqueeze(0)).squeeze(0))
    return out.view_as(hidden_states)
