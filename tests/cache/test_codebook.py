"""What is written with a codebook, read back and extended."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvbench.cache.codebook import Book, store_codebook
from kvbench.cache.cover import unit_and_norm
from kvbench.cache.store import Tail
from kvbench.prefill.selection import top_rows
from support import naive
from support.vectors import clustered


def test_a_vector_is_written_as_direction_and_length():
    book = Book.of(torch.tensor([[3.0, 4.0]]), 0.98, True, torch.ones(1), torch.zeros(1))
    torch.testing.assert_close(book.entries, torch.tensor([[0.6, 0.8]]))
    assert book.norms.tolist() == [5.0]
    torch.testing.assert_close(book.read(), torch.tensor([[3.0, 4.0]]))


def _store(prefill, count, **changes):
    layer = prefill.layers[0]
    rng = torch.Generator().manual_seed(5)
    rows = top_rows(torch.rand(layer.query_heads, layer.tokens - 4, generator=rng), count)
    settings = {"theta_key": 0.98, "theta_value": 0.95, **changes}
    return layer, rows, store_codebook(layer, rows, 4, **settings)


@pytest.mark.parametrize("scope", ["head", "layer"])
def test_thresholds_near_one_give_back_the_rows_of_each_query_head(scope):
    prefill = naive.random_prefill(50)
    layer, rows, store = _store(prefill, 20, theta_key=0.99999, theta_value=0.99999, scope=scope)
    (band,) = store.materialize()
    recent = torch.arange(46, 50).expand(4, -1)
    kept = torch.cat([rows, recent], 1)
    heads = torch.arange(4)[:, None] // 2
    torch.testing.assert_close(band.k, layer.k[heads, kept], atol=1e-5, rtol=0)
    torch.testing.assert_close(band.v, layer.v[heads, kept], atol=1e-5, rtol=0)
    assert torch.equal(band.positions.long(), kept)


@pytest.mark.parametrize("scope", ["head", "layer"])
def test_repeated_directions_are_stored_once_and_read_exactly(scope):
    prefill = naive.random_prefill(60, distinct=5)
    layer, rows, store = _store(prefill, 30, scope=scope)
    entries = sum(len(b.entries) for b in store.key_books)
    assert entries <= 5 * layer.kv_heads
    (band,) = store.materialize()
    heads = torch.arange(4)[:, None] // 2
    torch.testing.assert_close(band.k[:, :30], layer.k[heads, rows], atol=1e-4, rtol=0)


def test_bytes_are_those_of_every_tensor_held():
    store = _store(naive.random_prefill(60, distinct=5), 30)[2]
    total = 0
    for book in store.key_books + store.value_books:
        total += book.entries.numel() * 4 + book.refs.numel() * 2 + book.norms.numel() * 4
    total += sum(p.numel() * 2 for p in store.positions + store.places)
    total += (store.window.k.numel() + store.window.v.numel()) * 4
    assert store.nbytes == total == sum(store.bytes_by_part.values())


def test_without_magnitude_no_norm_is_stored_and_entries_keep_their_length():
    prefill = naive.random_prefill(60, distinct=5)
    store = _store(prefill, 30, magnitude=False)[2]
    assert "norms" in store.bytes_by_part
    assert store.bytes_by_part["norms"] == 0
    book = store.key_books[0]
    assert not torch.allclose(book.entries.norm(dim=1), torch.ones(len(book.entries)), atol=1e-2)


@pytest.mark.parametrize("scope", ["head", "layer"])
@pytest.mark.parametrize("heads", ["query", "kv"])
def test_absorbed_tokens_are_matched_to_entries_or_get_their_own(scope, heads):
    prefill = naive.random_prefill(64, distinct=5)
    layer = prefill.layers[0]
    count = 30
    rng = torch.Generator().manual_seed(5)
    n = layer.query_heads if heads == "query" else layer.kv_heads
    rows = top_rows(torch.rand(n, 56, generator=rng), count)
    at = torch.arange(60, 64)
    early = replace(layer, k=layer.k[:, :60], v=layer.v[:, :60], k_pre=layer.k_pre[:, :60])
    store = store_codebook(
        early, rows, 4, theta_key=0.98, theta_value=0.95, scope=scope, merge_every=4
    )
    known = torch.stack([layer.k_pre[h, rows[h * n // 2]][:4] * 3 for h in range(2)])
    fresh_v = torch.randn(2, 4, 8, generator=rng)
    rotated = layer.rotary.rotate(known, at.expand(2, -1))
    tail = Tail(rotated, fresh_v, at, known)
    after = store.absorb(tail)
    assert sum(len(b.entries) for b in after.key_books) == sum(
        len(b.entries) for b in store.key_books
    )
    assert sum(len(b.entries) for b in after.value_books) > sum(
        len(b.entries) for b in store.value_books
    )
    (band,) = after.materialize()
    (before,) = store.materialize()
    assert torch.equal(band.k[:, : count + 4], before.k)
    repeats = n // 2
    torch.testing.assert_close(
        band.k[:, count + 4 :], rotated.repeat_interleave(repeats, 0), atol=1e-4, rtol=0
    )
    assert band.positions[:, count + 4 :].tolist() == [[60, 61, 62, 63]] * n


@pytest.mark.parametrize("new", [1, 7, 63])
def test_a_new_vector_goes_to_the_nearest_entry_above_theta_or_joins_the_greedy_rest(new):
    theta = 0.9
    old = Book.of(clustered(40, 4, 1), theta, True, torch.ones(40), torch.zeros(40))
    fresh = torch.cat([clustered(new, 4, 1), clustered(new, 4, 2)]) * 3
    book = old.extended(fresh)
    cosines = unit_and_norm(fresh)[0].double() @ old.entries.double().T
    rest = [i for i in range(2 * new) if cosines[i].max() <= theta]
    picks, refs = naive.greedy_cover(unit_and_norm(fresh)[0][rest], theta, list(range(len(rest))))
    expected = [int(row.argmax()) for row in cosines]
    for i, ref in zip(rest, refs, strict=True):
        expected[i] = len(old.entries) + ref
    assert book.refs[40:].tolist() == expected
    torch.testing.assert_close(
        book.entries[len(old.entries) :], unit_and_norm(fresh)[0][rest][picks]
    )
    torch.testing.assert_close(book.norms[40:], fresh.norm(dim=1))
    assert torch.equal(book.refs[:40], old.refs)
