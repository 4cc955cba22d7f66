"""Plain rows and unions of rows: what is counted is what is held and read."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvbench.cache.rows import index_dtype, store_ragged_rows, store_rows, store_whole
from kvbench.cache.spans import span_kept
from kvbench.cache.store import Compressed, Store
from kvbench.prefill.state import LayerState
from support import naive

ROWS = torch.tensor([[0, 2, 5, 9], [1, 2, 5, 8], [0, 1, 2, 3], [0, 1, 2, 3]])
"""Of four query heads; the first two read six distinct rows, the others four."""


def a_layer(tokens: int = 12, sliding_window: int | None = None) -> LayerState:
    return naive.random_prefill(tokens, layers=1, sliding_window=sliding_window).layers[0]


def readable(store: Store) -> int:
    """K and V vectors that the heads read, counted one by one."""
    return sum(2 * len(head) for band in store.materialize() for head in band.positions)


def held(store: Store) -> int:
    """K and V vectors in memory, from the bytes of the rows."""
    rows = store.tensors()["rows"]
    return sum(t.nbytes for t in rows) // (rows[0].shape[-1] * rows[0].element_size())


@pytest.mark.parametrize(("union", "kept", "stored"), [(True, 32, 20), (False, 32, 32)])
def test_vectors_kept_and_stored_are_those_read_and_held(
    union: bool, kept: int, stored: int
) -> None:
    store = store_rows(a_layer(), ROWS, union=union)
    assert store.kept_vectors == readable(store) == kept
    assert store.stored_vectors == held(store) == stored
    assert store.heads == 4


@pytest.mark.parametrize("sliding_window", [None, 5])
def test_positions_are_counted_where_decoding_reads_them(sliding_window: int | None) -> None:
    layer = a_layer(sliding_window=sliding_window)
    ragged = [torch.arange(3), torch.arange(8)]
    stores = {
        10: store_rows(layer, ROWS, union=True),
        16: store_rows(layer, ROWS),
        11: store_ragged_rows(layer, ragged),
    }
    for rows, store in stores.items():
        counted = sum(t.numel() for t in store.tensors().get("positions", ()))
        assert counted == (0 if sliding_window is None else rows)


@pytest.mark.parametrize("sliding_window", [None, 5])
def test_a_whole_cache_needs_no_positions_unless_tokens_were_dropped(
    sliding_window: int | None,
) -> None:
    layer = a_layer(sliding_window=sliding_window)
    assert "positions" not in store_whole(layer).tensors()
    gaps = replace(layer, positions=torch.arange(12) * 2)
    assert ("positions" in store_whole(gaps).tensors()) == (sliding_window is not None)
    assert store_whole(gaps).bands[0].positions[1].tolist() == list(range(0, 24, 2))


def test_indices_below_65536_take_two_bytes() -> None:
    assert index_dtype(65536) == torch.uint16
    assert index_dtype(65537) == torch.int32


def test_a_span_ends_before_its_end_and_shares_have_four_places() -> None:
    cache = Compressed((store_rows(a_layer(), ROWS[:2] % 11),))
    spans = {"one": (5, 8), "two": (8, 9), "three": (0, 3)}
    assert span_kept(cache, spans) == {"one": [0.3333], "two": [0.5], "three": [0.6667]}
