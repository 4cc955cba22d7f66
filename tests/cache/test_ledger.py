"""The four readings of memory: hand vector T7, and bytes summed over real tensors."""

from __future__ import annotations

import pytest

from kvbench.cache.ledger import formula15, ledger
from kvbench.compress.budget import Budget
from kvbench.methods.snapkv import SnapKV
from kvbench.methods.spindlekv import SpindleKV
from support import naive

# T7: h = 32, h_kv = 8, l = 1000, d = 128, 400 vectors a head, |C_K| + |C_V| = 6000, 16 bits.
T7 = {"kept": 2 * 32 * 400, "stored": 6000, "references": 2 * 32 * 400, "head_dim": 128}


def test_formula15_by_hand_with_native_denominators():
    layer = formula15(**T7, native=2 * 8 * 1000, index_bits=16, key_bits=16)
    assert layer.r1 == pytest.approx(1.6)
    assert layer.r2 == pytest.approx(0.234375)
    assert layer.additive == pytest.approx(0.4000)
    overhead = layer.additive - layer.r1 * layer.r2
    assert overhead == pytest.approx(0.025)


def test_formula15_as_printed_differs_from_the_additive_reading():
    layer = formula15(**T7, native=2 * 8 * 1000, index_bits=16, key_bits=16)
    # The vectors' "printed-style" product uses (d + int/key + 1)/d; the typeset one int/(key+1).
    assert layer.r1 * layer.r2 * 1.015625 == pytest.approx(0.380859, abs=1e-6)
    assert layer.printed == pytest.approx(0.375 * (128 + 16 / 17) / 128)


def test_counting_query_heads_on_both_sides_hides_the_copies():
    layer = formula15(**T7, native=2 * 32 * 1000, index_bits=16, key_bits=16)
    assert layer.r1 == pytest.approx(0.4)
    assert layer.r1 * layer.r2 * 1.015625 == pytest.approx(0.095215, abs=1e-6)


@pytest.mark.parametrize(("bits", "r3"), [(16, 1.00735), (32, 1.01471)])
def test_the_printed_r3_at_key_bits_16(bits, r3):
    layer = formula15(
        kept=100, native=100, stored=100, references=100, head_dim=128, index_bits=bits, key_bits=16
    )
    assert layer.printed == pytest.approx(r3, abs=1e-5)


def test_plain_rows_read_the_same_in_all_readings():
    prefill = naive.random_prefill(200)
    found = ledger(prefill, SnapKV().compress(prefill, Budget(fraction=0.5)))
    for value in (
        found.kept_ratio,
        found.ratio_bytes,
        found.ratio_formula15,
        found.ratio_formula15_printed,
    ):
        assert value == pytest.approx(0.5)
    assert found.r1 == pytest.approx((0.5,) * 3)
    assert found.r2 == (1.0,) * 3


def test_copies_per_query_head_are_counted():
    prefill = naive.random_prefill(200)
    repeated = SnapKV(heads="query", store="repeat", window=8)
    found = ledger(prefill, repeated.compress(prefill, Budget(tokens=50)))
    assert found.kept_tokens == (50.0,) * 3
    assert found.kept_ratio == pytest.approx(0.25)
    assert found.ratio_bytes == pytest.approx(0.5)  # two query heads per KV head


def test_bytes_by_part_add_up_and_codebooks_show_their_overhead():
    prefill = naive.random_prefill(200, distinct=8)
    found = ledger(prefill, SpindleKV(window=8).compress(prefill, Budget(fraction=0.5)))
    assert sum(found.bytes_by_part.values()) == found.cache_bytes
    assert set(found.bytes_by_part) == {"entries", "indices", "norms", "positions", "rows"}
    assert found.ratio_bytes == found.cache_bytes / found.native_bytes
    assert found.r1[0] > 0.5
    assert max(found.r2) < 0.5


def test_a_union_keeps_per_head_what_each_query_head_reads():
    prefill = naive.random_prefill(200)
    union = SnapKV(heads="query", window=8)
    found = ledger(prefill, union.compress(prefill, Budget(tokens=50)))
    assert found.kept_tokens == (50.0,) * 3
    assert found.r1 == pytest.approx((0.5,) * 3)  # two query heads per KV head
    assert all(0.5 < share < 1 for share in found.r2)


@pytest.mark.parametrize("magnitude", [True, False])
def test_both_readings_of_a_codebook_with_a_window_by_hand(magnitude):
    prefill = naive.random_prefill(200, distinct=8)
    method = SpindleKV(window=8, magnitude=magnitude)
    cache = method.compress(prefill, Budget(fraction=0.5))
    found = ledger(prefill, cache)
    additive = printed = 0.0
    for store in cache.layers:
        (band,) = store.materialize()
        kept = 2 * band.positions.numel()
        entries = sum(len(book.entries) for book in store.key_books + store.value_books)
        stored = entries + 2 * 2 * 8  # K and V of two KV heads' windows
        through_books = kept - 2 * 4 * 8  # the window's rows are read as they are
        r1, r2 = kept / (2 * 2 * 200), stored / kept
        # Indices of 16 bits, numbers of 32, dimension 8; a norm takes one number.
        share = through_books / kept
        additive += r1 * (r2 + share * (16 / 32 + magnitude) / 8) / 3
        printed += r1 * r2 * (8 + 16 / 33) / 8 / 3
    assert found.ratio_formula15 == pytest.approx(additive)
    assert found.ratio_formula15_printed == pytest.approx(printed)
