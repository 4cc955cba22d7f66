"""Quantized storage: codes, error bounds, true bytes, and how bits follow the budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvbench.base.errors import UserError
from kvbench.cache.ledger import ledger
from kvbench.cache.quantized import channel_group, packed, quantized_bytes, store_quantized
from kvbench.compress.budget import Budget
from kvbench.compress.fit import fit_budget
from kvbench.methods.quantized import Quantized
from support import naive
from support.methods import composed


def half_precision(prefill):
    layers = [replace(s, k=s.k.half(), v=s.v.half()) for s in prefill.layers]
    return replace(prefill, layers=tuple(layers))


def test_a_group_by_hand():
    written = packed(torch.tensor([[0.0, 1.0, 2.0, 3.0], [-3.0, 0.0, 0.4, 6.0]]), bits=2)
    assert written.codes.tolist() == [0b11100100, 0b11010100]
    assert written.steps.tolist() == [1.0, 3.0]
    assert written.least.tolist() == [0.0, -3.0]
    assert written.read().tolist() == [[0, 1, 2, 3], [-3, 0, 0, 6]]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (7, 32), (0, 8)])
def test_values_come_back_within_half_a_step(bits, dtype, shape):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    written = packed(values, bits)
    assert written.codes.numel() == -(-values.numel() * bits // 8)
    error = (written.read().float() - values.float()).abs()
    rounding = (
        4 * torch.finfo(dtype).eps * values.float().abs().amax(-1, keepdim=True)
        if len(values)
        else torch.zeros(0, 1)
    )
    top = 2**bits - 1
    assert bool((error <= written.steps.float()[:, None] * (0.5 + top * 0.01) + rounding).all())


def test_equal_values_come_back_exactly():
    values = torch.full((2, 6), 1.7)
    assert torch.equal(packed(values, 2).read(), values)


def test_keys_are_grouped_along_tokens_and_values_along_channels():
    """An outlier channel of the keys, and an outlier token of the values, spoil nothing else."""
    (layer,) = naive.random_prefill(64, layers=1, dim=32).layers
    k, v = layer.k.clone(), layer.v.clone()
    k[:, :, 5] += 1000
    v[:, 7] += 1000
    layer = replace(layer, k=k, v=v)
    (band,) = store_quantized(layer, 64, 4, 32).materialize()
    others = [c for c in range(32) if c != 5]
    assert float((band.k - k)[:, :, others].abs().max()) < 0.3
    rest = [t for t in range(64) if t != 7]
    assert float((band.v - v)[:, rest].abs().max()) < 0.3


def test_the_newest_rows_and_what_fills_no_group_are_exact():
    (layer,) = naive.random_prefill(100, layers=1, dim=32).layers
    store = store_quantized(layer, 64, 2, 32)
    (band,) = store.materialize()
    assert torch.equal(band.k[:, 64:], layer.k[:, 64:])
    assert torch.equal(band.v[:, 64:], layer.v[:, 64:])
    assert band.positions.tolist() == [list(range(100))] * 2


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("dim", [8, 24, 32, 64, 80])
@pytest.mark.parametrize("older", [0, 32, 96])
def test_bytes_by_formula_are_the_bytes_held(bits, dim, older):
    prefill = half_precision(naive.random_prefill(100, layers=1, dim=dim))
    (layer,) = prefill.layers
    store = store_quantized(layer, older, bits, 32)
    assert store.nbytes == quantized_bytes(layer, older, bits, 32)
    captured = {x.untyped_storage().data_ptr() for x in (layer.k, layer.v)}
    held = [t for ts in store.tensors().values() for t in ts]
    assert captured.isdisjoint(t.untyped_storage().data_ptr() for t in held)


def test_a_group_of_channels_divides_the_head():
    assert [channel_group(d, 32) for d in (8, 64, 80, 96, 128)] == [8, 32, 20, 32, 32]


@pytest.mark.parametrize(
    ("share", "bits"), [(0.2, 2), (0.3, 2), (0.32, 4), (0.5, 4), (0.57, 8), (0.9, 8)]
)
def test_the_most_bits_that_fit_are_taken_and_full_precision_fills_the_budget(share, bits):
    prefill = half_precision(naive.random_prefill(3200, layers=2, dim=64))
    cache = fit_budget(Quantized(), prefill, Budget(fraction=share))
    assert cache.facts["bits"] == bits
    assert cache.facts["over_budget"] is False
    found = ledger(prefill, cache)
    assert share - 0.01 <= found.ratio_bytes <= share
    assert found.kept_ratio == 1.0
    tokens = fit_budget(Quantized(), prefill, Budget(tokens=round(share * 3200)))
    assert tokens.nbytes == cache.nbytes


def test_a_budget_below_two_bits_is_said_to_be_exceeded():
    prefill = half_precision(naive.random_prefill(320, layers=2, dim=64))
    cache = fit_budget(Quantized(), prefill, Budget(fraction=0.1))
    assert cache.facts["over_budget"] is True
    assert cache.nbytes / prefill.nbytes == pytest.approx(0.125 + 0.0625)


def test_kivis_setting_does_not_follow_the_budget():
    prefill = half_precision(naive.random_prefill(1128, layers=1, dim=64))
    low, high = (
        fit_budget(Quantized(bits=2, residual=128), prefill, Budget(fraction=r)) for r in (0.2, 0.8)
    )
    assert low.nbytes == high.nbytes
    assert low.facts["quantized_tokens"] == 992
    assert low.layers[0].newest.k.shape[1] == 136


@pytest.mark.parametrize("tokens", [1, 31, 127, 128, 129, 160, 255, 256, 300, 1128])
def test_kivis_residual_is_128_values_and_what_keys_leave_of_blocks_of_128(tokens):
    """Against each side quantized by itself; KIVI keeps all values of up to 128 tokens."""
    prefill = half_precision(naive.random_prefill(tokens, layers=1, dim=64))
    (layer,) = prefill.layers
    method = composed("method=quantized_kivi")
    cache = method.compress(prefill, Budget(fraction=0.2))
    (store,) = cache.layers
    keys, values = tokens - tokens % 128, max(0, tokens - 128)
    assert (cache.facts["quantized_tokens"], cache.facts["quantized_values"]) == (keys, values)
    (band,) = store.materialize()
    assert torch.equal(band.k[:, keys:], layer.k[:, keys:])
    assert torch.equal(band.v[:, values:], layer.v[:, values:])
    coded = packed(layer.v[:, :values].reshape(-1, 32), 2).read().view(2, values, 64)
    assert torch.equal(band.v[:, :values], coded)
    groups = layer.k[:, :keys].reshape(2, keys // 32, 32, 64).transpose(2, 3)
    coded = packed(groups.reshape(-1, 32), 2).read().view(2, keys // 32, 64, 32)
    assert torch.equal(band.k[:, :keys], coded.transpose(2, 3).reshape(2, keys, 64))
    assert band.positions.tolist() == [list(range(tokens))] * 2
    assert store.nbytes == quantized_bytes(layer, keys, 2, 32, values)
    assert store.nbytes == sum(t.nbytes for ts in store.tensors().values() for t in ts)
    (lane,) = store.segments()
    assert torch.cat([segment.positions for segment in lane], 1).tolist() == band.positions.tolist()
    q = torch.randn(2, 3, 64).half()
    products = torch.cat([segment.products(q) for segment in lane], 2)
    torch.testing.assert_close(products, q @ band.k.transpose(1, 2))
    weights = torch.rand(2, 3, tokens).half()
    parts = weights.split([segment.rows for segment in lane], 2)
    mixed = sum(s.mix(w).float() for s, w in zip(lane, parts, strict=True))
    torch.testing.assert_close(mixed, (weights @ band.v).float(), atol=0.5, rtol=1e-2)


@pytest.mark.parametrize("residual", [None, 0])
def test_a_residual_that_is_split_must_be_one(residual):
    with pytest.raises(UserError, match=r"method.residual=.* cannot be split: give"):
        Quantized(residual=residual, split_residual=True)


@pytest.mark.parametrize(("field", "value"), [("bits", 3), ("group", 0), ("residual", -1)])
def test_fields_out_of_range_are_refused(field, value):
    with pytest.raises(UserError, match=f"method.{field}=.*give"):
        Quantized(**{field: value})


def test_codes_that_end_inside_a_byte_take_it_whole():
    layer = naive.random_prefill(7, layers=1, query_heads=1, kv_heads=1, dim=2).layers[0]
    store = store_quantized(layer, 5, 2, 5)
    # Ten numbers of two bits, keys and values, are three bytes each.
    assert store.bytes_by_part["codes"] == 2 * 3
    assert store.nbytes == quantized_bytes(layer, 5, 2, 5)
