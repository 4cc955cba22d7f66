"""A step-by-step model over explicit lists of rows: what decoding is compared with.

It runs the random Llama one token at a time with plain attention in float64 loops over (position,
key, value) lists, and shares no code with the stores.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvbench.cache.store import Compressed
from support import naive

QUERY_HEADS, KV_HEADS, DIM = 4, 2, 16
GROUP = QUERY_HEADS // KV_HEADS


@dataclass
class Row:
    """One kept token of one head."""

    position: int
    k_pre: Tensor
    k: Tensor
    v: Tensor
    score: float = 0.0


@dataclass
class NaiveHead:
    """The rows of one selecting head; `readers` are the query heads that attend to them."""

    readers: list[int]
    rows: list[Row] = field(default_factory=list)


class NaiveLayer:
    """Plain attention over lists of rows, and a rule that runs after each forward."""

    def __init__(self, heads: list[NaiveHead]) -> None:
        self.heads = heads

    def keys(self, head: NaiveHead) -> list[Tensor]:
        return [r.k for r in head.rows]

    def attend(self, q: Tensor) -> Tensor:
        """q [Q, D] -> [Q, D]; each row's score grows by its mean weight over the readers."""
        out = torch.zeros(QUERY_HEADS, DIM)
        for head in self.heads:
            keys = torch.stack(self.keys(head)).double()
            values = torch.stack([r.v for r in head.rows]).double()
            weights = [(keys @ q[i].double() * DIM**-0.5).softmax(0) for i in head.readers]
            for i, w in zip(head.readers, weights, strict=True):
                out[i] = (w @ values).float()
            for j, row in enumerate(head.rows):
                row.score += float(sum(w[j] for w in weights)) / len(weights)
        return out

    def after_forward(self) -> None:
        """Evict."""


class NaiveH2O(NaiveLayer):
    def __init__(self, heads: list[NaiveHead], held: int, newest: int, visible: bool) -> None:
        super().__init__(heads)
        self.held, self.newest, self.visible = held, newest, visible

    def after_forward(self) -> None:
        for head in self.heads:
            rows = head.rows
            if len(rows) <= self.held:
                continue
            tokens = rows[-1].position + 1
            older = rows[: len(rows) - self.newest]
            scores = [r.score / (tokens - r.position) if self.visible else r.score for r in older]
            best = naive.top_positions(scores, self.held - self.newest)
            head.rows = [older[i] for i in best] + rows[len(rows) - self.newest :]


class NaiveStream(NaiveLayer):
    def __init__(self, heads: list[NaiveHead], sinks: int, held: int, turn) -> None:
        super().__init__(heads)
        self.sinks, self.held, self.turn = sinks, held, turn

    def keys(self, head: NaiveHead) -> list[Tensor]:
        if self.turn is None:
            return [r.k for r in head.rows]
        return [self.turn(r.k_pre, i) for i, r in enumerate(head.rows)]

    def after_forward(self) -> None:
        for head in self.heads:
            while len(head.rows) > self.held:
                del head.rows[self.sinks]


def naive_forward(network, token: int, position: int, layers: list[NaiveLayer]) -> Tensor:
    """Logits after one token; its rows join every layer."""
    x = network.model.embed_tokens(torch.tensor([token]))
    cos, sin = network.model.rotary_emb(x[None], torch.tensor([[position]]))
    for block, layer in zip(network.model.layers, layers, strict=True):
        normed = block.input_layernorm(x)[0]
        q, k, v = (
            proj(normed).view(-1, DIM)
            for proj in (block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj)
        )
        q_at, k_at = (naive.rotate_half(a[None, :, None], cos, sin)[0, :, 0] for a in (q, k))
        for head in layer.heads:
            g = head.readers[0] // GROUP
            head.rows.append(Row(position, k[g], k_at[g], v[g]))
        x = x + block.self_attn.o_proj(layer.attend(q_at).flatten())[None]
        x = x + block.mlp(block.post_attention_layernorm(x))
    return network.lm_head(network.model.norm(x))[0].detach()


def naive_decode(network, layers, feed, logits, steps, next_position) -> list[Tensor]:
    """Logits of every forward: the fed tokens as one, then each generated token."""
    seen = []
    tokens = list(feed) or [int(logits.argmax())]
    for _ in range(steps):
        for token in tokens:
            logits = naive_forward(network, token, next_position(), layers)
        for layer in layers:
            layer.after_forward()
        seen.append(logits)
        tokens = [int(logits.argmax())]
    return seen


class NaiveBlocks(NaiveLayer):
    """PyramidInfer's: the oldest 16 generated tokens that are not recent shrink to the best."""

    def __init__(self, heads: list[NaiveHead], kept: int, block: int, recent: int) -> None:
        super().__init__(heads)
        self.kept, self.block, self.recent = kept, block, recent
        self.decided = [len(h.rows) for h in heads]
        for head in heads:
            for row in head.rows:
                row.score = 0.0

    def after_forward(self) -> None:
        first = self.decided[0]
        while len(self.heads[0].rows) - first >= self.block + self.recent:
            newest = self.heads[0].rows[-1].position
            scores = []
            for i in range(first, first + self.block):
                received = sum(h.rows[i].score for h in self.heads) / len(self.heads)
                scores.append(received / (newest - self.heads[0].rows[i].position + 1))
            best = naive.top_positions(scores, self.kept)
            for head in self.heads:
                kept = [head.rows[first + i] for i in best]
                head.rows[first : first + self.block] = kept
            first += self.kept
        self.decided = [first]


class NaiveBook(NaiveLayer):
    """SpindleKV's merging: every `merge_every` tokens the waiting rows are written with books."""

    def __init__(self, heads, books, every, thetas, turn) -> None:
        super().__init__(heads)
        self.books, self.every, self.thetas, self.turn = books, every, thetas, turn
        self.waiting = 0

    def attend(self, q: Tensor) -> Tensor:
        self.waiting += 1
        return super().attend(q)

    def after_forward(self) -> None:
        if self.waiting < self.every:
            return
        for g in range(KV_HEADS):
            mine = [h for h in self.heads if h.readers[0] // GROUP == g]
            fresh = mine[0].rows[-self.waiting :]
            keys = self.written(self.books[g][0], [r.k_pre for r in fresh], self.thetas[0])
            values = self.written(self.books[g][1], [r.v for r in fresh], self.thetas[1])
            for head in mine:
                for row, k_pre, v in zip(head.rows[-self.waiting :], keys, values, strict=True):
                    row.k_pre, row.v, row.k = k_pre, v, self.turn(k_pre, row.position)
        self.waiting = 0

    @staticmethod
    def written(entries: list[Tensor], vectors: list[Tensor], theta: float) -> list[Tensor]:
        """Each vector as its entry times its own norm; unmatched ones make entries of their own."""
        unit = [direction(x) for x in vectors]
        refs: dict[int, int] = {}
        for i, x in enumerate(unit):
            cosines = [float(x @ direction(e)) for e in entries]
            if cosines and max(cosines) > theta:
                refs[i] = cosines.index(max(cosines))
        rest = [i for i in range(len(unit)) if i not in refs]
        if rest:
            picks, of = naive.greedy_cover(
                torch.stack([unit[i] for i in rest]), theta, list(range(len(rest)))
            )
            for i, ref in zip(rest, of, strict=True):
                refs[i] = len(entries) + ref
            entries += [unit[rest[p]] for p in picks]
        return [entries[refs[i]] * x.norm() for i, x in enumerate(vectors)]


def direction(x: Tensor) -> Tensor:
    """Unit vector; the padding token's values are zero and stay so."""
    return x / x.norm() if x.any() else x


def lists_of_rows(prefill, cache: Compressed, sums: str | None) -> list[list[NaiveHead]]:
    """The compressed prompt as lists, taken from the capture at the positions kept."""
    found = []
    for state, store in zip(prefill.layers, cache.layers, strict=True):
        heads = []
        positions = [p for b in store.materialize() for p in b.positions.tolist()]
        for i, kept in enumerate(positions):
            g = i * KV_HEADS // len(positions)
            readers = (
                [i] if len(positions) == QUERY_HEADS else list(range(g * GROUP, (g + 1) * GROUP))
            )
            rows = [Row(p, state.k_pre[g, p], state.k[g, p], state.v[g, p]) for p in kept]
            if sums is not None:
                for row in rows:
                    row.score = float(state.column_sums[readers, row.position].mean())
            heads.append(NaiveHead(readers, rows))
        found.append(heads)
    return found
