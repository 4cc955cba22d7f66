from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from kvbench.analysis.drawing import write_figure
from kvbench.analysis.measures import (
    attention_map,
    attention_sparsity,
    in_bins,
    jaccard,
    kept_masks,
    similar_pairs,
)
from kvbench.analysis.panels import BY_NAME, PrefillPanel
from kvbench.cli.main import app
from kvbench.compress.budget import Budget
from kvbench.compress.fit import fit_budget
from kvbench.compress.scores import window_attention
from kvbench.methods.snapkv import SnapKV
from kvbench.model.attention import AttentionRule
from kvbench.model.loading import LoadedModel
from kvbench.plan.names import FIGURES
from kvbench.prefill.capture import capture
from kvbench.prefill.needs import Needs
from kvbench.prefill.state import LayerState, Prefill


def a_layer(**changes: object) -> LayerState:
    k = torch.randn(2, 63, 8, generator=torch.Generator().manual_seed(0))
    layer = LayerState(k, k.flip(1), k.repeat(2, 1, 1), AttentionRule(0.3))
    return replace(layer, **changes)


@pytest.fixture(scope="module")
def prefill(tiny: LoadedModel) -> Prefill:
    needs = Needs(window=1 << 20, pre_rope_keys=True, column_sums=True)
    return capture(tiny, torch.arange(97) % 200, needs)


@pytest.mark.parametrize(("tokens", "even"), [(20, 0.05), (100, 0.05), (7, 0.0)])
def test_even_attention_leaves_a_twentieth_of_the_tokens_out(tokens: int, even: float) -> None:
    layer = a_layer(column_sums=torch.full((3, tokens), 1 / tokens))
    # Sums of equal shares may fall just short of the border.
    assert attention_sparsity(layer) == pytest.approx(even, abs=1.01 / tokens)


def test_one_token_that_takes_all_attention_leaves_the_rest_out() -> None:
    sums = torch.zeros(2, 50)
    sums[:, 3] = 1
    assert attention_sparsity(a_layer(column_sums=sums)) == pytest.approx(0.98)


def test_sparsity_counts_tokens_as_a_loop_does() -> None:
    sums = torch.rand(4, 61, generator=torch.Generator().manual_seed(1)) ** 4
    shares = []
    for head in sums:
        left, needed = 0.95 * float(head.sum()), 0
        for value in sorted(head.tolist(), reverse=True):
            if left <= 0:
                break
            left -= value
            needed += 1
        shares.append(1 - needed / 61)
    found = attention_sparsity(a_layer(column_sums=sums))
    assert found == pytest.approx(sum(shares) / 4, abs=1e-6)


@pytest.mark.parametrize("tokens", [2, 7, 63, 257])
def test_similar_pairs_are_those_of_two_loops(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbench.analysis.measures.BLOCK", 50)
    vectors = torch.randn(2, tokens, 3, generator=torch.Generator().manual_seed(tokens))
    above = pairs = 0
    for head in vectors:
        for i in range(tokens):
            rest = torch.cosine_similarity(head[i][None], head[i + 1 :])
            above += int((rest > 0.6).sum())
            pairs += tokens - i - 1
    assert similar_pairs(vectors, 0.6) == pytest.approx(above / pairs)


def test_copies_are_similar_and_opposites_are_not() -> None:
    one = torch.ones(1, 5, 4)
    assert similar_pairs(one, 0.9) == 1.0
    assert similar_pairs(torch.cat([one, -one], 1), 0.9) == pytest.approx(20 / 45)


@pytest.mark.parametrize("cells", [1, 7, 63])
def test_a_cell_of_the_map_is_what_its_queries_give_its_keys(cells: int) -> None:
    layer = a_layer()
    attention = window_attention(layer, 63).mean(0)
    edges = [i * cells // 63 for i in range(63)]
    expected = torch.zeros(cells, cells)
    for query in range(63):
        for key in range(63):
            expected[edges[query], edges[key]] += attention[query, key] / edges.count(edges[query])
    found = attention_map(layer, cells)
    assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(found.sum(1), torch.ones(cells), atol=1e-5)


def test_jaccard_is_intersection_over_union_of_sets() -> None:
    kept = torch.rand(4, 2, 31, generator=torch.Generator().manual_seed(2)) < 0.4
    kept[3] = False
    found = jaccard(kept)
    for a in range(4):
        for b in range(4):
            ratios = []
            for head in range(2):
                one = {i for i in range(31) if kept[a, head, i]}
                two = {i for i in range(31) if kept[b, head, i]}
                ratios.append(len(one & two) / len(one | two) if one | two else 1.0)
            assert found[a, b] == pytest.approx(sum(ratios) / 2)


def test_masks_hold_the_rows_that_the_cache_reads(prefill: Prefill) -> None:
    cache = fit_budget(SnapKV(window=8), prefill, Budget(fraction=0.5))
    masks = kept_masks(cache, prefill.tokens)
    assert masks.shape == (3, 2, 97)
    assert masks[:, :, -8:].all()
    assert masks.sum() == sum(store.kept_vectors for store in cache.layers) / 2
    bins = in_bins(masks[0], 10)
    assert bins.shape == (2, 10)
    assert torch.allclose(bins[0, :1], masks[0, 0, :10].float().mean())


@pytest.mark.parametrize("name", FIGURES)
def test_every_analysis_has_panels_of_one_shape_and_finite(name: str, prefill: Prefill) -> None:
    caches = {"snapkv@0.5": fit_budget(SnapKV(window=8), prefill, Budget(fraction=0.5))}
    for panel in BY_NAME[name].panels(prefill, caches):
        assert panel.values.ndim == 2 and panel.values.isfinite().all()
        assert panel.values.min() >= 0 and panel.values.max() <= 1 + 1e-5
        if panel.lines:
            assert panel.values.shape == (len(panel.lines), 3)


def test_the_same_panels_give_the_same_files(tmp_path: Path) -> None:
    map_of = PrefillPanel("a", torch.rand(4, 4), (), "x", "y")
    for folder in ("one", "two"):
        write_figure([map_of, replace(map_of, title="b")], tmp_path / folder, "maps")
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["maps.pdf", "maps.png", "maps.svg"]
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.slow
def test_an_analysis_runs_on_the_command_line_and_is_reported(tmp_path: Path) -> None:
    words = ["run", "model=tiny-random", "model.context=1024", "task=hotpotqa", "limit=2"]
    words.append(f"out={tmp_path}")
    for name in ("similarity", "kept"):
        methods = ["method=snapkv,pyramidinfer", "budget=0.5"] * (name == "kept")
        done = CliRunner().invoke(app, [*words, f"analysis={name}", *methods])
        assert done.exit_code == 0, done.output
        assert f"{name}.svg" in done.stdout
    with (tmp_path / "similarity.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 2 * 3
    text = CliRunner().invoke(app, ["report", str(tmp_path)]).stdout
    assert "keys, cosine > 0.9" in text
    assert "pyramidinfer@0.5" in text and "fullkv" not in text


def test_an_unknown_analysis_is_refused_in_one_line() -> None:
    done = CliRunner().invoke(app, ["run", "model=tiny-random", "analysis=overlp"])
    assert done.exit_code == 2
    assert "did you mean overlap?" in done.stderr and done.stderr.count("\n") == 1


def test_a_prefill_beyond_the_memory_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    words = ["model=tiny-random", "task=qasper", "limit=1", "method=snapkv", "memory=1KiB"]
    done = CliRunner().invoke(app, ["run", "analysis=kept", *words, f"out={tmp_path / 'run'}"])
    assert done.exit_code == 2 and done.stderr.strip().count("\n") == 0
    assert "1.0 KiB may be taken" in done.stderr and not (tmp_path / "run").exists()
