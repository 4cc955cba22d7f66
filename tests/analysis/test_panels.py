from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from kvbench.analysis.drawing import write_figure, write_numbers
from kvbench.analysis.measures import (
    attention_map,
    attention_sparsity,
    in_bins,
    jaccard,
    kept_masks,
    similar_pairs,
)
from kvbench.analysis.panels import BY_NAME, LAYER, Axis, PrefillPanel
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
from kvbench.report.sheets.status import status_text


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
        assert panel.values.ndim == len(panel.axes) and panel.values.isfinite().all()
        assert panel.values.min() >= 0 and panel.values.max() <= 1 + 1e-5
        if panel.lines:
            assert panel.values.shape == (len(panel.lines), 3)


def test_the_same_panels_give_the_same_files(tmp_path: Path) -> None:
    map_of = PrefillPanel("a", torch.rand(4, 4), (LAYER, LAYER), "share")
    for folder in ("one", "two"):
        write_figure([map_of, replace(map_of, title="b")], tmp_path / folder, "maps", "m, qasper")
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["maps.pdf", "maps.png", "maps.svg"]
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def texts_of(path: Path) -> list[str]:
    """What an SVG file says, from top to bottom of the file."""
    nodes = ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(node.itertext()) for node in nodes]


def drawn_texts(name: str, prefill: Prefill, folder: Path) -> list[str]:
    cache = fit_budget(SnapKV(window=8), prefill, Budget(fraction=0.5))
    panels = BY_NAME[name].panels(prefill, {"snapkv@0.5": cache, "b": cache})
    write_figure(panels, folder, name, "m, hotpotqa")
    write_numbers(panels, folder / f"{name}.csv")
    return texts_of(folder / f"{name}.svg")


@pytest.mark.parametrize(
    ("name", "x", "y", "unit"),
    [
        ("kept", "prompt (%)", "layer (a row for each head)", "share of tokens kept"),
        ("attention", "key (%)", "query (%)", "share of the query's attention"),
        ("overlap", "other layer", "layer", "Jaccard similarity"),
    ],
)
def test_the_axes_of_a_map_are_true_and_it_says_of_what_it_is(
    name: str, x: str, y: str, unit: str, prefill: Prefill, tmp_path: Path
) -> None:
    texts = drawn_texts(name, prefill, tmp_path)
    assert {x, y, unit, "m, hotpotqa"} <= set(texts)
    percent, layers = ["0", "25", "50", "75", "100"], ["0", "1", "2"]
    panels = texts[: texts.index(unit)]  # the color bar comes last
    numbers = [text for text in panels if text.isdigit()]
    expected = {
        "kept": (percent + layers) + percent,
        "attention": (percent + percent) + percent + percent,
        "overlap": (layers + layers) + layers,
    }
    assert numbers == expected[name]


def test_the_numbers_of_a_map_name_layers_heads_and_percents(
    prefill: Prefill, tmp_path: Path
) -> None:
    drawn_texts("kept", prefill, tmp_path)
    with (tmp_path / "kept.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == ["panel", "layer", "head", "prompt (%)", "value"]
    places = [(line["layer"], line["head"], line["prompt (%)"]) for line in lines[: 3 * 2 * 64]]
    assert places[0] == ("0", "0", "0") and places[-1] == ("2", "1", "98.4375")
    assert len(set(places)) == len(places)
    cache = fit_budget(SnapKV(window=8), prefill, Budget(fraction=0.5))
    kept = in_bins(kept_masks(cache, prefill.tokens)[1, 1], 64)
    found = [float(line["value"]) for line in lines if (line["layer"], line["head"]) == ("1", "1")]
    assert found[:64] == pytest.approx(kept.tolist(), abs=1e-6)


@pytest.mark.parametrize(
    ("upright", "bottom"), [(LAYER, True), (Axis("query (%)", 100, down=True), False)]
)
def test_the_first_layer_is_at_the_bottom_and_the_first_query_at_the_top(
    upright: Axis, bottom: bool, tmp_path: Path
) -> None:
    values = torch.zeros(4, 3)
    values[0] = 1
    panel = PrefillPanel("a", values, (upright, LAYER), "share")
    write_figure([panel], tmp_path, "map", "m")
    image = np.asarray(Image.open(tmp_path / "map.png").convert("RGB")).astype(int)
    left = image[:, : image.shape[1] * 3 // 4]  # without the color bar
    yellow = (abs(left - [253, 231, 37]).max(-1) < 5).any(1).nonzero()[0]
    assert (yellow.mean() > len(image) / 2) == bottom


@pytest.mark.slow
def test_an_analysis_runs_on_the_command_line_and_is_reported(tmp_path: Path) -> None:
    words = ["run", "model=tiny-random", "model.context=1024", "task=hotpotqa", "limit=2"]
    words.append(f"out={tmp_path}")
    for name in ("similarity", "kept"):
        methods = ["method=snapkv,pyramidinfer", "budget=0.5"] * (name == "kept")
        done = CliRunner().invoke(app, [*words, f"analysis={name}", *methods])
        assert done.exit_code == 0, done.output
        assert f"{name}.svg" in done.stdout
        assert (tmp_path / "figures" / f"{name}.svg").is_file()
    with (tmp_path / "similarity.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 2 * 3
    text = CliRunner().invoke(app, ["report", str(tmp_path)]).stdout
    assert "keys, cosine > 0.9" in text
    assert "pyramidinfer@0.5" in text and "fullkv" not in text


def test_status_says_which_numbers_of_an_analysis_a_folder_holds(tmp_path: Path) -> None:
    panel = PrefillPanel("snapkv@0.5", torch.zeros(3, 3), (LAYER, LAYER), "share")
    write_numbers([panel], tmp_path / "overlap.csv")
    said = status_text(tmp_path)
    assert said.startswith("overlap: snapkv@0.5; numbers in overlap.csv, not drawn.\n")


@pytest.mark.slow
def test_status_says_which_analyses_and_speeds_a_folder_holds(tmp_path: Path) -> None:
    words = ["run", "model=tiny-random", f"out={tmp_path}"]
    for more in (
        ["analysis=sparsity", "task=hotpotqa", "limit=1", "protocol.max_input_tokens=200"],
        ["analysis=speed", "speed.context=64", "speed.generate=2", "speed.repeats=1"],
    ):
        done = CliRunner().invoke(app, [*words, *more])
        assert done.exit_code == 0, done.output
    status = CliRunner().invoke(app, ["status", str(tmp_path)])
    assert status.exit_code == 0, status.output
    assert "speed: fullkv, spindlekv@0.2 on tiny-random, 64 prompt tokens, 2" in status.stdout
    assert "sparsity: attention sparsity; numbers in sparsity.csv, drawn in figures/" in (
        status.stdout
    )


def test_an_unknown_analysis_is_refused_in_one_line() -> None:
    done = CliRunner().invoke(app, ["run", "model=tiny-random", "analysis=overlp"])
    assert done.exit_code == 2
    assert "did you mean overlap?" in done.stderr and done.stderr.count("\n") == 1


def test_a_prefill_beyond_the_memory_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    words = ["model=tiny-random", "task=qasper", "limit=1", "method=snapkv", "memory=1KiB"]
    done = CliRunner().invoke(app, ["run", "analysis=kept", *words, f"out={tmp_path / 'run'}"])
    assert done.exit_code == 2 and done.stderr.strip().count("\n") == 0
    assert "1.0 KiB may be taken" in done.stderr and not (tmp_path / "run").exists()
