"""Every method on generated sizes: budgets about the prompt, windows beyond it, odd heads, ties."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.base.errors import UserError
from kvbench.cache.ledger import ledger
from kvbench.compress.budget import Budget
from kvbench.compress.fit import fit_budget
from kvbench.compress.method import Method
from kvbench.prefill.state import Prefill
from support import naive
from support.methods import METHODS

AFTER_PREFILL = sorted(name for name, method in METHODS.items() if method.acts_after_prefill)
HEADS = [(1, 1), (5, 5), (6, 3), (7, 1), (4, 2), (6, 2)]
VECTORS = {
    "random": lambda x: x,
    "zero": torch.zeros_like,
    "identical": lambda x: x[:, :1].expand_as(x).contiguous(),
    "two kinds": lambda x: x[:, torch.arange(x.shape[1]) % min(2, x.shape[1])],
}


def prefill_of(kind: str, tokens: int, layers: int, heads: tuple[int, int], width: int) -> Prefill:
    made = naive.random_prefill(
        tokens, layers=layers, query_heads=heads[0], kv_heads=heads[1], dim=width, window=256
    )
    states = []
    for state in made.layers:
        changes: dict[str, Any] = {n: VECTORS[kind](getattr(state, n)) for n in ("k", "v", "q_win")}
        changes["k_pre"] = None if state.k_pre is None else VECTORS[kind](state.k_pre)
        states.append(replace(state, **changes))
    return replace(made, layers=tuple(states))


def widened(method: Method, window: int | None) -> Method:
    """The method with another window, where it has one and takes this one."""
    if window is None or "window" not in {field.name for field in fields(method)}:
        return method
    try:
        return replace(method, window=window)  # type: ignore[call-arg]
    except UserError as error:
        assert "\n" not in str(error)
        return method


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(AFTER_PREFILL),
    st.sampled_from(sorted(VECTORS)),
    st.integers(1, 48),
    st.integers(1, 3),
    st.sampled_from(HEADS),
    st.sampled_from([2, 6, 16]),
    st.sampled_from([-1, 0, 1]) | st.floats(0.02, 1.0),
    st.none() | st.integers(1, 200),
)
def test_any_sizes_give_a_cache_of_rows_of_the_prompt_or_one_line(
    choice: str,
    kind: str,
    tokens: int,
    layers: int,
    heads: tuple[int, int],
    width: int,
    near: float,
    window: int | None,
) -> None:
    if isinstance(near, int):
        budget = Budget(tokens=max(1, tokens + near))
    else:
        budget = Budget(fraction=near)
    prefill = prefill_of(kind, tokens, layers, heads, width)
    try:
        cache = fit_budget(widened(METHODS[choice], window), prefill, budget)
    except UserError as error:
        assert "\n" not in str(error)
        return
    found = ledger(prefill, cache)
    assert 0 <= found.kept_ratio <= 1.0  # a share of one token's bytes may hold none
    if budget.keeps_whole(tokens):
        assert found.kept_ratio == 1.0
    for store in cache.layers:
        for band in store.materialize():
            assert band.k.isfinite().all() and band.v.isfinite().all()
            for head in band.positions.tolist():
                assert head == sorted(set(head)) and set(head) <= set(range(tokens))
