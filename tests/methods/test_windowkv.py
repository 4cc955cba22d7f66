"""WindowKV against its hand vectors and a slow twin."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvbench.base.errors import UserError
from kvbench.cache.ledger import ledger
from kvbench.classifier.trained import AGGREGATION, LOCALISATION, task_types
from kvbench.compress.budget import Budget
from kvbench.compress.fit import fit_budget
from kvbench.methods.windowkv import (
    WindowKV,
    nearest_divisor,
    released_budgets,
    review_window_scores,
    rows_of_windows,
)
from kvbench.tasks.longbench import LONGBENCH_16, LongBench
from kvbench.tasks.task import Sample
from support import naive


def _rows(cache, layer=0, head=0):
    (band,) = cache.layers[layer].materialize()
    return band.positions[head].tolist()


def _as(prefill, task_type):
    return replace(prefill, task_types={"oracle": task_type})


# T8
@pytest.mark.parametrize(
    ("tokens", "gamma", "layers", "expected"),
    [
        (2048, 8, 32, [2926, 2341, 1756, 1170]),
        (1024, 8, 32, [1463, 1171, 879, 585]),
        (512, 8, 32, [732, 586, 440, 292]),
        (2048, 7, 28, [3072, 2390, 1708, 1024]),
        (2048, 14, 28, [2048, 2048]),
        (2048, 16, 32, [1756, 2340]),
    ],
)
def test_released_budgets_by_hand(tokens, gamma, layers, expected):
    assert released_budgets(tokens, layers // gamma, gamma, 14.0) == expected
    method = WindowKV(budget_rule="released")
    assert method.group_budgets(tokens, 10**6, layers, gamma) == expected


def test_the_papers_budgets_by_hand():
    # 3949.71, 2681.90, 1414.10, 146.29: the sum is whole, the largest remainders round up.
    assert WindowKV().group_budgets(2048, 10**6, 32, 8) == [3950, 2682, 1414, 146]


def test_the_papers_budgets_do_not_depend_on_gamma_at_the_ends():
    for gamma in (1, 2, 4, 8, 16):
        line = WindowKV().group_budgets(2048, 10**6, 32, gamma)
        assert (line[0], line[-1]) == (3950, 146)
        assert sum(line) * gamma == pytest.approx(2048 * 32, abs=gamma)


def test_a_short_context_caps_the_first_group_and_keeps_the_mean():
    line = WindowKV().group_budgets(600, 1000, 32, 8)
    assert line == [1000, 733, 467, 200]
    assert WindowKV().group_budgets(1000, 1000, 32, 8) == [1000] * 4


def test_the_released_selection_by_hand():
    scores = torch.rand(990, generator=torch.Generator().manual_seed(0))
    scores[-1] = 2.0
    assert len(rows_of_windows(scores, 8, 7918, 1170, True)) == 146 * 8 - 2  # the last one is short
    scores[-1] = -1.0
    assert len(rows_of_windows(scores, 8, 7918, 1170, True)) == 146 * 8
    assert len(rows_of_windows(scores[:146], 8, 1168, 1170, True)) == 1168
    assert len(rows_of_windows(scores[:8], 8, 63, 6, True)) == 0


def test_windows_with_equal_scores_are_kept_in_order():
    rows = rows_of_windows(torch.tensor([0.5, 0.7, 0.5, 0.5]), 3, 11, 6, False)
    assert rows.tolist() == [0, 1, 2, 3, 4, 5]
    rows = rows_of_windows(torch.tensor([0.1, 0.2, 0.3, 0.9]), 3, 11, 4, False)
    assert rows.tolist() == [6, 7, 9, 10]


@pytest.mark.parametrize("tokens", [9, 63, 257])
@pytest.mark.parametrize(("omega", "best"), [(1, 1), (4, 4), (5, 2), (300, 150)])
def test_window_scores_equal_the_slow_twin(tokens, omega, best):
    layer = naive.random_prefill(tokens, layers=1).layers[0]
    window = 8
    received = naive.window_attention(layer, window).mean(1)[:, : tokens - window]
    expected = []
    for first in range(0, tokens - window, omega):
        heads = []
        for head in received[:, first : first + omega].tolist():
            top = sorted(head)[-best:]
            heads.append(sum(top) / len(top))
        expected.append(sum(heads) / len(heads))
    found = review_window_scores(layer, window, omega, best)
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-6, rtol=1e-5)


def test_all_layers_of_a_group_and_all_heads_share_the_first_layers_rows():
    prefill = naive.random_prefill(300, layers=6)
    cache = WindowKV(gamma=3).compress(prefill, Budget(tokens=80))
    for layer in (0, 1, 2):
        assert _rows(cache, layer, 0) == _rows(cache, layer, 1) == _rows(cache, 0)
    assert _rows(cache, 3) == _rows(cache, 5)
    assert len(_rows(cache, 0)) > len(_rows(cache, 3))
    # The first layer of a group alone decides.
    layers = list(prefill.layers)
    layers[1], layers[2] = layers[2], layers[1]
    swapped = WindowKV(gamma=3).compress(replace(prefill, layers=tuple(layers)), Budget(tokens=80))
    assert _rows(swapped, 2) == _rows(cache, 2)


def test_layers_that_do_not_share_choose_at_their_groups_budget():
    prefill = naive.random_prefill(300, layers=6)
    alone = WindowKV(gamma=3, shared=False).compress(prefill, Budget(tokens=80))
    together = WindowKV(gamma=3).compress(prefill, Budget(tokens=80))
    for layer in range(6):
        assert len(_rows(alone, layer)) == len(_rows(together, layer))
        first = replace(prefill, layers=prefill.layers[layer : layer + 1] * 6)
        assert _rows(alone, layer) == _rows(
            WindowKV(gamma=3).compress(first, Budget(tokens=80)), layer
        )
    assert _rows(alone, 0) == _rows(together, 0)
    assert _rows(alone, 1) != _rows(together, 1)


@pytest.mark.parametrize("task_type", [LOCALISATION, AGGREGATION])
def test_a_task_type_that_is_stated_wins_over_the_oracle(task_type):
    prefill, budget = naive.random_prefill(300), Budget(tokens=100)
    method = WindowKV(task_type=task_type)
    assert not method.needs.classifiers
    told = _rows(WindowKV().compress(_as(prefill, task_type), budget))
    for other in (LOCALISATION, AGGREGATION):
        cache = method.compress(_as(prefill, other), budget)
        assert _rows(cache) == told
        assert cache.facts["task_type"] == task_type


# T14
def test_windows_of_one_token_in_groups_of_one_are_head_shared_top_tokens():
    prefill = naive.random_prefill(200)
    method = WindowKV(omega_aggregation=1, alpha_aggregation=8, gamma=1, beta=1.0)
    cache = method.compress(_as(prefill, AGGREGATION), Budget(tokens=50))
    for i, layer in enumerate(prefill.layers):
        received = naive.window_attention(layer, 8)[:, :, :192].mean((0, 1))
        assert _rows(cache, i) == [*naive.top_positions(received.tolist(), 42), *range(192, 200)]


def test_the_task_type_chooses_score_and_sizes_and_released_swaps_them():
    prefill = naive.random_prefill(300)
    budget = Budget(tokens=100)
    kept = {}
    for strategy in ("paper", "released"):
        for task_type in (LOCALISATION, AGGREGATION):
            cache = WindowKV(strategy=strategy).compress(_as(prefill, task_type), budget)
            assert cache.facts["task_type"] == task_type
            kept[strategy, task_type] = _rows(cache)
    assert kept["paper", LOCALISATION] == kept["released", AGGREGATION]
    assert kept["paper", AGGREGATION] == kept["released", LOCALISATION]
    assert kept["paper", LOCALISATION] != kept["paper", AGGREGATION]
    unknown = WindowKV().compress(prefill, budget)
    assert _rows(unknown) == kept["paper", AGGREGATION]


@pytest.mark.parametrize("task_type", [LOCALISATION, AGGREGATION])
def test_the_budget_is_met_to_the_token_under_the_papers_rule(task_type):
    prefill = _as(naive.random_prefill(401, layers=8), task_type)
    for gamma in (1, 2, 8):
        found = ledger(prefill, WindowKV(gamma=gamma).compress(prefill, Budget(tokens=100)))
        assert sum(found.kept_tokens) / 8 == pytest.approx(100, abs=gamma / 8)


@pytest.mark.parametrize("r", [0.1, 0.2, 0.4, 0.8])
def test_released_rules_meet_a_fraction_in_bytes(r):
    method = WindowKV(
        omega_aggregation=8, strategy="released", budget_rule="released", suffix="outside"
    )
    prefill = naive.random_prefill(2000, layers=4)
    found = ledger(prefill, fit_budget(method, prefill, Budget(fraction=r)))
    assert found.ratio_bytes == pytest.approx(r, abs=0.01)


def test_released_suffix_comes_on_top_of_a_budget_in_tokens():
    method = WindowKV(gamma=1, beta=1.0, budget_rule="released", suffix="outside")
    prefill = _as(naive.random_prefill(800), AGGREGATION)
    # 800 - 32 is 48 windows of 16; 96 rows are 6 of them.
    found = ledger(prefill, method.compress(prefill, Budget(tokens=96)))
    assert found.kept_tokens == (128.0, 128.0, 128.0)


def test_gamma_is_the_divisor_nearest_eight():
    assert [nearest_divisor(n, 8) for n in (32, 28, 24, 30, 31, 80, 1)] == [8, 7, 8, 6, 1, 8, 1]


def test_a_gamma_that_does_not_divide_the_layers_is_refused_with_the_remedy():
    with pytest.raises(UserError, match=r"gamma=2 does not divide the model's 3 layers: give a"):
        WindowKV(gamma=2).compress(naive.random_prefill(90), Budget(tokens=40))


def test_the_oracle_localizes_the_six_question_answering_sets():
    found = {}
    for task in LongBench(LONGBENCH_16).tasks():
        sample = Sample(task, "1", "context", "input", ("answer",))
        found |= {task.name: task_types(["oracle"], sample)["oracle"]}
    localized = [name for name, task_type in found.items() if task_type == LOCALISATION]
    assert localized == list(LONGBENCH_16[:6])
    assert {found[name] for name in LONGBENCH_16[6:]} == {AGGREGATION}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("omega_localization", 0),
        ("alpha_aggregation", 0),
        ("gamma", 0),
        ("beta", 0.5),
        ("task_type", "needle"),
        ("strategy", "demo"),
        ("budget_rule", "code"),
        ("suffix", "both"),
    ],
)
def test_a_field_out_of_range_is_refused_with_value_and_remedy(field, value):
    with pytest.raises(UserError, match=rf"method\.{field}=.*{value}.*give"):
        WindowKV(**{field: value})
