"""One forward over a prompt, kept as a frozen `Prefill`: the ordinary one, or one that prunes.

Peak memory stays near what is kept: no transformers cache, no T x T tensor, full queries freed
layer by layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from kvbench.model.attention import (
    AttentionRule,
    causal_attention,
    column_sums,
    column_sums_last_block,
)
from kvbench.model.hooks import (
    RotaryRecorder,
    feeding_kept_tokens,
    recording_pre_rope,
    rotary_function,
)
from kvbench.model.loading import LoadedModel
from kvbench.model.rotary import Rotary, RotaryTable, RotaryTables
from kvbench.prefill.needs import Needs
from kvbench.prefill.pruning import PruningCapture, PruningSchedule
from kvbench.prefill.reconstruction import reconstruction_scores, template_around
from kvbench.prefill.state import LayerState, Prefill, QueryStatistics


class _Capture:
    """Serves the attention of a prefill, plain and causal, and keeps what the methods read."""

    def __init__(
        self,
        needs: Needs,
        recorder: RotaryRecorder | None,
        rotate: Callable[[Tensor, Tensor, Tensor], Tensor] | None,
        tables: RotaryTables,
    ) -> None:
        self.layers: list[LayerState] = []
        self._needs = needs
        self._recorder = recorder
        self._rotate = rotate
        self._tables = tables
        self._found: list[tuple[Tensor, RotaryTable]] = []

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rule: AttentionRule,
    ) -> Tensor:
        """Keep the layer's state and return its causal attention."""
        assert q.shape[0] == 1, "a prefill is captured one prompt at a time"
        assert layer == len(self.layers), "attention layers ran out of order"
        k, v = k.contiguous(), v.contiguous()
        tokens = k.shape[2]
        window = min(self._needs.window, tokens)
        k_pre = rotary = sums = None
        statistics = {}
        if self._recorder is not None and self._rotate is not None:
            for skipped in self._needs.query_statistics:
                statistics[skipped] = query_statistics(
                    self._recorder.queries[0], skipped, k.shape[1]
                )
            k_pre, cos, sin = self._recorder.take()
            k_pre = k_pre[0].contiguous() if self._needs.pre_rope_keys else None
            rotary = Rotary(self._table(cos, sin), self._rotate)
        if self._needs.column_sums:
            sums = column_sums(q[0], k[0], rule)
        self.layers.append(
            LayerState(
                k=k[0],
                v=v[0],
                # Cloned, so that the queries of all tokens are freed with the layer.
                q_win=q[0, :, tokens - window :].clone(memory_format=torch.contiguous_format),
                rule=rule,
                k_pre=k_pre,
                rotary=rotary,
                column_sums=sums,
                last_block_sums={
                    block: column_sums_last_block(q[0], k[0], rule, block)
                    for block in sorted(self._needs.last_block_sums)
                },
                query_statistics=statistics,
                index=layer,
            )
        )
        return causal_attention(q, k, v, rule)

    def _table(self, cos: Tensor, sin: Tensor) -> RotaryTable:
        """The table of what a layer turns by; layers of one kind are given the same tensors."""
        for seen, table in self._found:
            if seen is cos:
                return table
        self._found.append((cos, self._tables.table(cos[0], sin[0])))
        return self._found[-1][1]


def _check_finite(layers: Sequence[LayerState]) -> None:
    """Refuse NaN and infinity, which would make every score of a layer meaningless.

    Raises:
        FloatingPointError: naming the first layer that holds one.
    """
    for state in layers:
        for name, tensor in (("keys", state.k), ("values", state.v)):
            if not torch.stack(torch.aminmax(tensor)).isfinite().all():
                raise FloatingPointError(
                    f"{name} of layer {state.index} hold NaN or infinity: try another model.dtype"
                )


def query_statistics(queries: Tensor, skipped: int, groups: int = 1) -> QueryStatistics:
    """Mean and covariance over all but the first `skipped` of the queries [Q, T, D].

    A prompt that has no others counts them all.

    Args:
        queries: of all tokens.
        skipped: first tokens left out.
        groups: how many parts the heads are worked on in; less is held for a moment.
    """
    counted = queries[:, skipped if skipped < queries.shape[1] else 0 :]
    means, covariances = [], []
    for some in counted.chunk(groups):
        wide = some.float()
        mean = wide.mean(1)
        centered = wide - mean[:, None]
        means.append(mean)
        covariances.append(centered.transpose(1, 2) @ centered / wide.shape[1])
    return QueryStatistics(torch.cat(means), torch.cat(covariances))


def capture(
    model: LoadedModel, ids: Tensor, needs: Needs, schedule: PruningSchedule | None = None
) -> Prefill:
    """Run one forward over a prompt and keep every layer's state.

    Where a method asks for them, further passes over the frozen state fill `reconstructions`.

    Args:
        model: the model.
        ids: [T] long token ids, T >= 1; positions are 0 .. T-1.
        needs: what the methods read, their union.
        schedule: how the prefill prunes, for the methods that ask for just this one; nothing
            beyond keys and values is kept then. None: every layer is fed every token.

    Returns:
        The frozen prefill, on the devices of its layers.

    Raises:
        UserError: the prompt does not fit the model's context.
        FloatingPointError: a layer's keys or values hold NaN or infinity.
    """
    model.check_length(int(ids.shape[0]))
    network = model.network
    ids = ids.to(model.device).unsqueeze(0)
    positions = torch.arange(ids.shape[1], device=model.device).unsqueeze(0)
    before_rope = needs.pre_rope_keys or bool(needs.query_statistics)
    rotate = rotary_function(network) if before_rope else None
    recording = recording_pre_rope(network) if before_rope else nullcontext()
    captured: _Capture | PruningCapture
    with torch.inference_mode(), recording as recorder, ExitStack() as feeding:
        if schedule is None:
            captured = _Capture(needs, recorder, rotate, model.rotary_tables)
        else:
            assert needs == Needs(), "a pruning prefill keeps keys and values only"
            assert schedule.tokens == ids.shape[1], "the schedule is another prompt's"
            captured = PruningCapture(schedule, model.device)
            feeding.enter_context(feeding_kept_tokens(network, captured))
        output = network(
            input_ids=ids,
            position_ids=positions,
            past_key_values=None,
            use_cache=False,
            logits_to_keep=1,
            kvbench=captured,
        )
        logits = output.logits[0, -1].to(model.device).float()
    assert len(captured.layers) == model.geometry.layers, "a layer did not attend through kvbench"
    layers = tuple(captured.layers)
    _check_finite(layers)
    around = template_around(model.tokenizer, ids[0].tolist()) if needs.template_prefix else None
    repetitions = {}
    if around is not None:
        for passes in sorted(needs.reconstructions, key=repr):
            scores, how = reconstruction_scores(model, ids[0], layers, around, passes)
            repetitions[passes] = how
            layers = tuple(
                replace(s, reconstructions={**s.reconstructions, passes: x})
                for s, x in zip(layers, scores, strict=True)
            )
    template_tokens = 0 if around is None else around.prefix_tokens
    return Prefill(
        layers, last_logits=logits, template_tokens=template_tokens, repetitions=repetitions
    )
