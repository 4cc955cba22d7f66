"""What is left of a span of the prompt after compression, such as a needle."""

from __future__ import annotations

from collections.abc import Mapping

from kvbench.cache.store import Compressed, Store


def span_kept(cache: Compressed, spans: Mapping[str, tuple[int, int]]) -> dict[str, list[float]]:
    """Return the share of each span's tokens that each layer keeps, mean over the layout's heads.

    Args:
        cache: what is kept, with its original positions.
        spans: name -> tokens [start, end) of the prompt.

    Returns:
        Name -> one share in [0, 1] per layer, rounded to four places; empty without spans.
    """
    if not spans:
        return {}
    kept: dict[str, list[float]] = {name: [] for name in spans}
    for store in cache.layers:
        for name, share in _shares(store, spans).items():
            kept[name].append(round(share, 4))
    return kept


def _shares(store: Store, spans: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    found = dict.fromkeys(spans, 0)
    for band in store.materialize():
        for name, (start, end) in spans.items():
            inside = (band.positions >= start) & (band.positions < end)
            found[name] += int(inside.sum())
    tokens = {name: end - start for name, (start, end) in spans.items()}
    return {name: count / (tokens[name] * store.heads) for name, count in found.items()}
