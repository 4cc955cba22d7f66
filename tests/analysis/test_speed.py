from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from kvbench.analysis.speed import PeakMemory, measured_speeds
from kvbench.base.errors import UserError
from kvbench.base.progress import Progress
from kvbench.cli.main import app
from kvbench.compress.budget import Budget
from kvbench.methods.fullkv import FullKV
from kvbench.methods.pyramidinfer import PyramidInfer
from kvbench.methods.snapkv import SnapKV
from kvbench.model.loading import LoadedModel, load
from kvbench.model.spec import ModelSpec, model_identity
from kvbench.plan.variant import Variant
from kvbench.records.speed import Lengths, Speed, SpeedRun
from kvbench.records.writer import Writer
from kvbench.report.paper.speed import SpeedNumbers
from kvbench.report.paper.table import Beside
from kvbench.report.sheets.speed import speed_runs
from support.cli import one_line
from support.models import shipped_spec
from support.paths import CONF
from support.runs import header, records, typed_header, write_shard

PUBLISHED = [path.stem for path in (CONF / "model").glob("*.yaml") if path.stem != "custom"]


def bench(*words: str) -> Result:
    return CliRunner().invoke(app, ["bench", "speed", *words])


def variants(*methods: object) -> list[Variant]:
    names = [type(method).__name__.lower() for method in methods]
    return [
        Variant(name, name, method, {}, Budget(fraction=1.0 if name == "fullkv" else 0.5))  # type: ignore[arg-type]
        for name, method in zip(names, methods, strict=True)
    ]


def test_every_variant_is_timed_and_weighed(tiny: LoadedModel) -> None:
    chosen = variants(FullKV(), SnapKV(window=8), PyramidInfer())
    full, snap, pyramid = measured_speeds(tiny, chosen, Lengths(256, 8, 1), Progress("m", 3))
    for speed in (full, snap, pyramid):
        assert speed.prefill_s > 0 and speed.decode_s > 0 and speed.compress_s >= 0
        assert speed.native_bytes == full.cache_bytes
    assert full.cache_bytes == 3 * 2 * 256 * 2 * 16 * 4  # float32, 3 layers
    assert snap.cache_bytes == pytest.approx(full.cache_bytes / 2, rel=0.02)
    assert full.reader is not None and full.reader.startswith("rows (")
    for speed in (full, snap):
        assert speed.cache_bytes < speed.decode_bytes < speed.cache_bytes * 1.3


def test_lengths_beyond_the_context_are_refused(tiny: LoadedModel) -> None:
    with pytest.raises(UserError) as error:
        measured_speeds(tiny, variants(FullKV()), Lengths(8193, 8, 1), Progress("m", 1))
    assert "8193" in one_line(error)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_the_peak_is_what_was_taken_at_most_and_not_what_was_taken_before() -> None:
    peak = PeakMemory([torch.device("cpu")])
    # What the allocator keeps of earlier work must not hide what later work takes.
    kept = [torch.ones(500_000) for _ in range(100)]
    del kept[::2]
    del kept
    for size in (20_000_000, 5_000_000, 20_000_000):
        found = peak.most(lambda size=size: torch.ones(size))
        assert found is not None
        assert 3.9 * size <= found < 4 * size + 30e6


def test_the_command_prints_a_row_for_fullkv_and_each_variant() -> None:
    words = ["model=tiny-random", "method=streamingllm", "budget=0.2,0.4"]
    done = bench(*words, "speed.context=128", "speed.generate=4", "speed.repeats=1")
    assert done.exit_code == 0, done.output
    text = done.stdout
    rows = [line.split()[0] for line in text.splitlines() if "KiB" in line]
    assert rows == ["fullkv", "streamingllm@0.2", "streamingllm@0.4"]
    assert "128 prompt tokens, 4 generated" in text and "torch" in text
    assert max(map(len, text.splitlines())) <= 100


def test_a_papers_speeds_stand_below_ours() -> None:
    words = ["model=tiny-random", "speed.context=96", "speed.generate=3", "speed.repeats=1"]
    done = bench("experiment=spindlekv/table9", *words)
    assert done.exit_code == 0, done.output
    ours, published = done.stdout.split("SpindleKV, Table 9")
    assert "spindlekv@0.4" in ours and "tiny-random" in ours
    assert "18.39" in published and "RTX 3090" in published


@pytest.mark.slow
def test_a_run_of_a_speed_table_is_kept_and_reported_beside_the_papers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["model=tiny-random", "speed.context=96", "speed.generate=3", "speed.repeats=1"]
    for budget in ("0.4", "0.39"):
        run = ["run", "experiment=spindlekv/table9", *words, f"budget={budget}"]
        done = CliRunner().invoke(app, run)
        assert done.exit_code == 0, done.output
    (run_of_both,) = speed_runs(Path("results/runs/spindlekv-table9"))
    labels = [f"spindlekv@{budget}[match=formula15]" for budget in ("0.4", "0.39")]
    assert [s.label for s in run_of_both.speeds] == ["fullkv", *labels]
    report = CliRunner().invoke(app, ["report", "experiment=spindlekv/table9"]).stdout
    decoded = next(s for s in run_of_both.speeds if s.label == labels[0]).decode_s
    assert f"{2 / decoded:.2f}" in report and "18.39" in report
    for obstacle in (
        "other model (ours tiny-random",
        "random weights",
        "published RTX 3090",
        "other lengths (ours 96 + 3 tokens, published 4096 + 1000)",
    ):
        assert obstacle in " ".join(report.split())
    table = CliRunner().invoke(app, ["report", "results/runs/spindlekv-table9", "--format", "csv"])
    assert len(table.stdout.splitlines()) == 1 + 3


def test_scores_and_speeds_of_one_folder_are_both_reported(tmp_path: Path) -> None:
    scores = {"fullkv": {"qasper": [0.25]}, "snapkv@0.2": {"qasper": [0.75]}}
    write_shard(tmp_path, header(tasks=["qasper"]), records(scores))
    alone = CliRunner().invoke(app, ["report", str(tmp_path)]).stdout
    words = ["run", "model=tiny-random", "analysis=speed", "method=snapkv", f"out={tmp_path}"]
    lengths = ["speed.context=96", "speed.generate=3", "speed.repeats=1"]
    assert CliRunner().invoke(app, [*words, *lengths]).exit_code == 0
    both = CliRunner().invoke(app, ["report", str(tmp_path)]).stdout
    assert both.startswith(alone)
    assert "Speed of tiny-random" in both.removeprefix(alone)


@pytest.mark.parametrize(
    "damage",
    [
        {"speeds": None},
        {"speeds": [{"label": "fullkv"}]},
        {"lengths": {"context": 8}},
        {"lengths": {"context": 8, "generate": 1, "repeats": 1}},
        {"machine": "mine"},
    ],
)
def test_a_damaged_line_of_speeds_is_skipped(tmp_path: Path, damage: dict[str, object]) -> None:
    speed = Speed(
        "fullkv", "fullkv", "fullkv", Budget(fraction=1.0), True, 1.0, 0.0, 1.0, 1, 1, None
    )
    run = SpeedRun("m", "w", Lengths(8, 4, 1), (speed,), {}, {})
    with Writer(tmp_path / "written", typed_header()) as writer:
        run.write(writer)
    (written,) = (tmp_path / "written").iterdir()
    whole = json.loads(written.read_text().splitlines()[1])
    lines = [header(), {**whole, **damage}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert speed_runs(tmp_path) == []
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, [header(), whole])) + "\n")
    assert speed_runs(tmp_path) == [run]


def test_throughput_is_all_tokens_over_all_time() -> None:
    speed = Speed(
        "windowkv@512", "windowkv", "windowkv", Budget(tokens=512), False, 5.0, 1.0, 2.0, 1, 2, None
    )
    lengths = Lengths(7950, 242, 10)
    run = SpeedRun("llama3-8b-instruct", "w", lengths, (speed,), {"gpu": "NVIDIA A100 40G"}, {})
    beside = Beside.of({"published": "windowkv/table2", "rows": {"WindowKV": ["windowkv"]}})
    assert beside is not None
    numbers = SpeedNumbers([run])
    tokens, latency = (f for f in beside.published.figures if f.method == "WindowKV")
    assert numbers.ours(tokens, beside, set()).value == pytest.approx(8192 / 8)
    assert numbers.ours(latency, beside, set()).value == pytest.approx(1000 * 8 / 8192)
    assert numbers.obstacles(tokens, beside) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method=snapkvv"], "snapkv"),
        (["speed.generate=1"], "speed.generate=1 is not a whole number >= 2"),
        (["--format", "csv"], "--format csv is not a form of bench"),
        (["model=custom", "model.path=a/b", "model.random_weights=true"], "needs the shape"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], said: str) -> None:
    done = bench(*words)
    assert done.exit_code == 2
    assert said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_shipped_model_has_the_shape_it_was_published_with(name: str) -> None:
    shape = shipped_spec(name, random_weights=True).random_shape
    parameters = {
        "llama2-7b-chat": 6.7e9,
        "llama3-8b-instruct": 8.0e9,
        "llama3-70b-instruct": 70.6e9,
        "llama3.1-8b-instruct": 8.03e9,
        "llama3.2-1b-instruct": 1.24e9,
        "llama3.2-3b-instruct": 3.21e9,
        "mistral-7b-instruct-v0.2": 7.2e9,
        "mistral-7b-instruct-v0.3": 7.25e9,
        "ministral-8b-instruct": 8.02e9,
        "gemma-3-4b-it": 3.88e9,  # without what sees pictures
        "gemma-3-12b-it": 11.77e9,
        "glm-4-9b": 9.4e9,
        "phi-3-mini-4k-instruct": 3.8e9,
        "phi-4-mini": 3.84e9,
        "qwen2.5-1.5b-instruct": 1.54e9,
        "qwen2.5-7b-instruct": 7.62e9,
        "qwen3-4b": 4.02e9,
        "qwen3-8b": 8.19e9,
        "smollm3-3b": 3.08e9,
        "smollm2-135m": 135e6,
    }
    if name not in parameters:
        assert name == "tiny-random"
        return
    assert shape.intermediate is not None and shape.vocabulary is not None
    heads = shape.query_heads * shape.head_dim
    # Random weights take the heads' width for the hidden states', which is another in three.
    hidden = {"gemma-3-4b-it": 2560, "gemma-3-12b-it": 3840, "qwen3-4b": 2560}.get(name, heads)
    attention = 2 * hidden * (heads + shape.kv_heads * shape.head_dim)
    layers = shape.layers * (attention + 3 * hidden * shape.intermediate)
    tied = name.startswith(("gemma-3", "llama3.2", "qwen2.5-1.5b", "qwen3-4b", "smollm", "phi-4"))
    total = layers + shape.vocabulary * hidden * (1 if tied else 2)
    assert total == pytest.approx(parameters[name], rel=0.02)


def test_random_weights_need_no_download_and_keep_the_shape() -> None:
    shape = {"layers": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 8}
    spec = ModelSpec(
        "big",
        "owner/name",
        dtype="bfloat16",
        device="cpu",
        random={**shape, "context": 128, "intermediate": 48, "vocabulary": 999},
        random_weights=True,
    )
    identity = model_identity(spec)
    assert (identity["source"], identity["path"]) == ("random", "random")
    network = load(spec).network
    assert network.dtype == torch.bfloat16 and torch.get_default_dtype() == torch.float32
    assert network.get_input_embeddings().weight.shape == (999, 32)
    assert network.model.layers[0].mlp.up_proj.weight.shape == (48, 32)
    assert load(spec).geometry.kv_heads == 2
