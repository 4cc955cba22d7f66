"""Simple scores against loops written out: key norm, last query, chance, expected attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvbench.base.errors import UserError
from kvbench.compress.budget import Budget
from kvbench.methods.expected_attention import ExpectedAttention, angles_per_position, mean_rotation
from kvbench.methods.knorm import Knorm
from kvbench.methods.random import Random
from kvbench.methods.tova import TOVA
from kvbench.model.rotary import RotaryTable
from kvbench.prefill.capture import capture, query_statistics
from kvbench.prefill.needs import Needs
from support import naive


def positions(cache):
    return [s.materialize()[0].positions.tolist() for s in cache.layers]


@pytest.mark.parametrize("tokens", [1, 7, 63, 257])
def test_knorm_keeps_the_shortest_keys(tokens):
    prefill = naive.random_prefill(tokens)
    kept = positions(Knorm().compress(prefill, Budget(fraction=0.4)))
    for layer, heads in zip(prefill.layers, kept, strict=True):
        for head, rows in enumerate(heads):
            lengths = [sum(float(x) ** 2 for x in key) for key in layer.k[head]]
            assert rows == naive.top_positions([-x for x in lengths], max(1, int(0.4 * tokens)))


def test_knorm_can_keep_a_window_beside():
    kept = positions(Knorm(window=5).compress(naive.random_prefill(40), Budget(tokens=10)))
    assert all(set(range(35, 40)) <= set(head) for layer in kept for head in layer)


def test_query_heads_of_a_group_share_their_keys_norms():
    cache = Knorm(heads="query").compress(naive.random_prefill(40), Budget(tokens=10))
    (heads,) = positions(cache)[:1]
    assert heads[0] == heads[1] != heads[2] == heads[3]


@pytest.mark.parametrize("sliding_window", [None, 20])
def test_tova_keeps_what_the_last_query_attends_to_over_all_heads(sliding_window):
    prefill = naive.random_prefill(63, sliding_window=sliding_window)
    kept = positions(TOVA().compress(prefill, Budget(tokens=15)))
    for layer, heads in zip(prefill.layers, kept, strict=True):
        mean = naive.window_attention(layer, 1)[:, 0].mean(0)[:-1].tolist()
        assert heads == [[*naive.top_positions(mean, 14), 62]] * 2


def test_random_rows_follow_the_seed_the_layer_and_the_head():
    prefill = naive.random_prefill(100)
    first = positions(Random().compress(prefill, Budget(tokens=20)))
    assert first == positions(Random().compress(prefill, Budget(tokens=20)))
    assert first != positions(Random(seed=1).compress(prefill, Budget(tokens=20)))
    drawn = [tuple(head) for layer in first for head in layer]
    assert len(set(drawn)) == len(drawn)


def test_a_smaller_random_budget_keeps_a_part_of_a_larger_ones_rows():
    prefill = naive.random_prefill(100)
    few, many = (positions(Random().compress(prefill, Budget(tokens=n))) for n in (10, 30))
    assert set(few[0][0]) < set(many[0][0])


@pytest.mark.parametrize("heads", ["query", "kv", "all"])
def test_random_rows_are_spread_evenly(heads):
    prefill = naive.random_prefill(50)
    counts = torch.zeros(50)
    for seed in range(200):
        method = Random(seed=seed, heads=heads, store="repeat")
        for layer in positions(method.compress(prefill, Budget(tokens=10))):
            counts[layer[0]] += 1
    share = counts / 600
    assert share.min() > 0.1 and share.max() < 0.3  # 0.2 is expected, its deviation is 0.016
    assert float(share.mean()) == pytest.approx(0.2)


class Recorded:
    """Inputs and rotations of one captured prompt, taken from the model by hooks of its own."""

    def __init__(self, tiny, tokens: int) -> None:
        ids = torch.randint(0, 200, (tokens,), generator=torch.Generator().manual_seed(5))
        self.queries: list[Tensor] = []
        hooks = [
            block.self_attn.q_proj.register_forward_hook(
                lambda _m, _a, out: self.queries.append(out[0].view(tokens, 4, 16).transpose(0, 1))
            )
            for block in tiny.network.model.layers
        ]
        needs = Needs(query_statistics=frozenset({0, 4}))
        try:
            self.prefill = capture(tiny, ids, needs)
        finally:
            for hook in hooks:
                hook.remove()


@pytest.fixture(scope="module")
def recorded(tiny):
    return Recorded(tiny, 80)


@pytest.mark.parametrize("skipped", [0, 4])
def test_query_statistics_are_those_of_the_queries_before_rope(recorded, skipped):
    for layer, queries in zip(recorded.prefill.layers, recorded.queries, strict=True):
        found = layer.query_statistics[skipped]
        for head in range(4):
            rows = queries[head, skipped:].double()
            torch.testing.assert_close(found.mean[head].double(), rows.mean(0), atol=1e-5, rtol=0)
            covariance = torch.cov(rows.T, correction=0)
            torch.testing.assert_close(
                found.covariance[head].double(), covariance, atol=1e-4, rtol=1e-4
            )
    assert recorded.prefill.layers[0].k_pre is None, "nobody asked for keys"
    assert [s.index for s in recorded.prefill.layers] == [0, 1, 2]


def test_statistics_of_a_prompt_shorter_than_the_sinks_count_every_query():
    queries = torch.randn(2, 3, 4)
    torch.testing.assert_close(query_statistics(queries, 4).mean, queries.mean(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [2, 3, 100, 6000])
@pytest.mark.parametrize("scale", [1.0, 1.2])
def test_angles_are_read_off_the_tables_of_the_prompt(dtype, tokens, scale):
    angles = 500000.0 ** (-torch.arange(32, dtype=torch.float64) / 32)
    at = torch.arange(tokens)[:, None] * angles
    found, factor = angles_per_position((scale * at.cos()).to(dtype), (scale * at.sin()).to(dtype))
    noise = 1e-6 if dtype == torch.float32 else 8e-3
    # What matters is the angle it comes to at the end of the prompt, and a little past it.
    assert float(((found - angles) * tokens).abs().max()) < 4 * noise
    assert float((factor - scale).abs().max()) < noise


def test_the_mean_rotation_is_the_mean_of_the_models_rotations_past_the_prompt(tiny, recorded):
    vectors = torch.randn(3, 5, 16)
    rotate = mean_rotation(recorded.prefill.layers[0].rotary, 80, 37)
    cos, sin = tiny.network.model.rotary_emb(vectors, torch.arange(80, 117)[None])
    expected = torch.stack(
        [naive.rotate_half(vectors[None], cos[:, i, None], sin[:, i, None])[0] for i in range(37)]
    ).mean(0)
    torch.testing.assert_close(rotate(vectors), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "settings",
    [{}, {"covariance": False}, {"value_norm": False}, {"epsilon": 0.02}, {"sinks": 0}],
    ids=str,
)
def test_expected_attention_is_the_closed_form_written_out_per_head(tiny, recorded, settings):
    method = ExpectedAttention(future_positions=64, **settings)
    cos, sin = tiny.network.model.rotary_emb(torch.zeros(1), torch.arange(80, 144)[None])
    half = torch.zeros(16, 16)
    half[8:, :8], half[:8, 8:] = torch.eye(8), -torch.eye(8)
    mean_turn = torch.diag(cos[0].mean(0)) + torch.diag(sin[0].mean(0)) @ half
    for layer, queries in zip(recorded.prefill.layers, recorded.queries, strict=True):
        got = method.head_scores(layer, 0)
        for g in range(2):
            weights = []
            for head in (2 * g, 2 * g + 1):
                rows = queries[head, method.sinks :]
                mean = mean_turn @ rows.mean(0)
                spread = mean_turn @ torch.cov(rows.T, correction=0) @ mean_turn.T
                logits = []
                for key in layer.k[g, method.sinks :]:
                    logit = mean @ key / 16**0.5
                    if method.covariance:
                        logit = logit + key @ spread @ key / 16 / 2
                    logits.append(logit)
                weights.append(torch.stack(logits).softmax(0))
            expected = (weights[0] + weights[1]) / 2
            if method.value_norm:
                expected = (expected + method.epsilon) * layer.v[g, method.sinks :].norm(dim=-1)
            torch.testing.assert_close(got[g, method.sinks :], expected, atol=1e-6, rtol=1e-3)
            assert torch.isinf(got[g, : method.sinks]).all()


def test_expected_attention_approaches_the_mean_weight_of_gaussian_queries():
    """The closed form against samples: one head, unnormalized weights, no rotation."""
    rng = torch.Generator().manual_seed(0)
    prefill = naive.random_prefill(30, query_heads=1, kv_heads=1, layers=1)
    (layer,) = prefill.layers
    still = replace(layer.rotary, table=RotaryTable(torch.ones(30, 8), torch.zeros(30, 8)))
    layer = replace(layer, rotary=still, k=0.5 * layer.k)
    statistics = layer.query_statistics[0]
    root = torch.linalg.cholesky(statistics.covariance[0] + 1e-6 * torch.eye(8))
    samples = statistics.mean[0] + torch.randn(400_000, 8, generator=rng) @ root.T
    sampled = (samples @ layer.k[0].T * layer.rule.scaling).exp().mean(0)
    method = ExpectedAttention(sinks=0, value_norm=False)
    found = method.head_scores(layer, 0)[0]
    torch.testing.assert_close(found, sampled / sampled.sum(), atol=2e-3, rtol=0.05)


def test_sinks_of_expected_attention_are_kept():
    kept = positions(ExpectedAttention().compress(naive.random_prefill(60), Budget(tokens=6)))
    assert all(head[:4] == [0, 1, 2, 3] and len(head) == 6 for layer in kept for head in layer)


@pytest.mark.parametrize(
    ("cls", "field", "value"),
    [
        (Knorm, "window", -1),
        (Random, "seed", -1),
        (ExpectedAttention, "sinks", -1),
        (ExpectedAttention, "future_positions", 0),
        (ExpectedAttention, "epsilon", -0.5),
        (TOVA, "heads", "none"),
    ],
)
def test_fields_out_of_range_are_refused(cls, field, value):
    with pytest.raises(UserError, match=f"method.{field}=.*give"):
        cls(**{field: value})
