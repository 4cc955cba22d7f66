"""The public surface: what it holds, what it costs, and that the command is made of it."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from typer.testing import CliRunner

import kvbench
from kvbench import ScoringMethod, UserError
from kvbench.cli.main import app
from kvbench.methods.h2o import H2O
from kvbench.methods.kvcrush import KVCrush
from kvbench.methods.snapkv import SnapKV
from kvbench.prefill.state import LayerState

PUBLIC = {
    "Budget",
    "LayerState",
    "Method",
    "Model",
    "Needs",
    "Prefill",
    "Record",
    "Run",
    "ScoringMethod",
    "UserError",
    "__version__",
    "evaluate",
    "list_methods",
    "load_model",
    "load_run",
    "wrap",
}
SHORT = ("protocol.max_new_tokens=6", "protocol.max_input_tokens=400", "model.device=cpu")
CONTEXT = "The lighthouse of Varne was built in 1712 of grey stone. " * 8


@dataclass(frozen=True)
class Evenly(ScoringMethod):
    """Keep evenly spread rows: a method of a notebook, which no YAML names."""

    window: int = 4
    store: str = "union"

    def newest_rows(self, mean_tokens: float) -> int:
        return self.window

    def head_scores(self, layer: LayerState, window: int) -> torch.Tensor:
        rows = torch.arange(layer.tokens - window, dtype=torch.float32)
        return -(rows % 3).expand(layer.kv_heads, -1)


def test_the_public_names_are_these_and_each_is_documented() -> None:
    assert set(kvbench.__all__) == PUBLIC == set(dir(kvbench))
    for name in PUBLIC - {"__version__"}:
        assert inspect.getdoc(getattr(kvbench, name)), f"{name} has no docstring"
    with pytest.raises(AttributeError, match="no attribute 'evaluatee'"):
        kvbench.evaluatee  # noqa: B018


def test_the_signature_of_evaluate_is_kept() -> None:
    assert list(inspect.signature(kvbench.evaluate).parameters) == [
        "model",
        "tasks",
        "methods",
        "budgets",
        "data",
        "protocol",
        "limit",
        "out",
        "baseline",
        "words",
        "progress",
    ]


COST = """
import sys, time
before = time.process_time()
{code}
spent = time.process_time() - before
assert "torch" not in sys.modules and "hydra" not in sys.modules, "imported"
print(spent)
"""


@pytest.mark.parametrize(
    ("code", "bound"),
    [
        ("import kvbench", 0.1),
        (
            "from kvbench.cli.main import app\n"
            "from typer.testing import CliRunner\n"
            "assert CliRunner().invoke(app, ['--help']).exit_code == 0",
            0.2,
        ),
    ],
)
def test_importing_and_helping_cost_little_and_no_torch(code: str, bound: float) -> None:
    spent = [
        float(subprocess.run([sys.executable, "-c", COST.format(code=code)], **_TEXT).stdout)
        for _ in range(3)
    ]
    assert min(spent) < bound


_TEXT = {"capture_output": True, "text": True, "check": True}


def test_an_evaluation_is_the_run_of_the_command(tmp_path: Path) -> None:
    run = kvbench.evaluate(
        model="tiny-random",
        tasks=["hotpotqa", "trec"],
        methods=["snapkv", SnapKV(window=16), KVCrush(base=H2O())],
        budgets=[0.2],
        limit=1,
        out=tmp_path / "api",
        words=SHORT,
        progress=False,
    )
    assert run.summary is not None and run.summary.computed == 2 * 4
    words = ["model=tiny-random", "task=hotpotqa,trec", "limit=1", *SHORT, "budget=0.2"]
    for named in (
        ["method=snapkv"],
        ["method=snapkv", "method.window=16"],
        ["method=kvcrush", "method/base=h2o"],
    ):
        done = CliRunner().invoke(app, ["run", *words, *named, f"out={tmp_path / 'command'}"])
        assert done.exit_code == 0, done.output
    ours, theirs = run.records(), kvbench.load_run(tmp_path / "command").records()
    as_said = {r.key: (r.variant, r.task, r.sample, r.prediction, r.kept_tokens) for r in ours}
    assert as_said == {
        r.key: (r.variant, r.task, r.sample, r.prediction, r.kept_tokens) for r in theirs
    }
    assert "snapkv@0.2[window=16]" in {r.variant for r in ours}
    again = CliRunner().invoke(app, ["run", *words, "method=snapkv", f"out={tmp_path / 'api'}"])
    assert "0 results recorded" in again.stdout, "the command knows what the call computed"


def test_a_second_call_computes_nothing_and_reads_the_same(tmp_path: Path) -> None:
    def evaluated() -> kvbench.Run:
        return kvbench.evaluate(
            "tiny-random", "qasper", "streamingllm", 0.3, limit=1, out=tmp_path, words=SHORT
        )

    first, second = evaluated(), evaluated()
    assert first.summary is not None and first.summary.computed == 2
    assert second.summary is not None and second.summary.computed == 0
    assert second.summary.known == 2 and first.records() == second.records()


def test_a_run_is_a_table_a_dataframe_and_a_header(tmp_path: Path) -> None:
    run = kvbench.evaluate(
        "tiny-random", ["qasper"], ["snapkv"], [0.3], limit=2, out=tmp_path, words=SHORT
    )
    printed = CliRunner().invoke(app, ["report", str(tmp_path)]).stdout
    assert run.table() == kvbench.load_run(tmp_path).table() == printed
    assert run.table("markdown", per_task=True).startswith("**tiny-random")
    frame = run.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 4
    assert list(frame.columns) == list(kvbench.Record.__dataclass_fields__)
    assert frame.groupby("variant").score.count().to_dict() == {"fullkv": 2, "snapkv@0.3": 2}
    assert run.header.model.name == "tiny-random"
    assert [v.budget for v in run.header.variants][1] == kvbench.Budget(fraction=0.3)
    with pytest.raises(UserError, match="a report's parts are"):
        run.table(per_taks=True)


def test_budgets_of_one_token_and_of_everything_are_two_rows(tmp_path: Path) -> None:
    run = kvbench.evaluate(
        "tiny-random", "qasper", "snapkv", [1, np.float64(1)], limit=1, out=tmp_path, words=SHORT
    )
    assert [r.variant for r in run.records()] == ["fullkv", "snapkv@1", "snapkv@1.0"]
    (table,) = run.tables()
    assert [str(row.budget) for row in table.rows] == ["1.0", "1.0", "1"]
    words = ["model=tiny-random", "task=qasper", "limit=1", *SHORT, "method=snapkv", "budget=1,1.0"]
    done = CliRunner().invoke(app, ["run", *words, f"out={tmp_path}"])
    assert "0 results recorded" in done.stdout, done.output


def test_a_method_that_no_yaml_names_is_evaluated_by_itself(tmp_path: Path) -> None:
    run = kvbench.evaluate(
        "tiny-random",
        "qasper",
        [Evenly(), Evenly(window=8)],
        [0.3],
        limit=1,
        out=tmp_path,
        words=SHORT,
    )
    labels = [r.variant for r in run.records()]
    assert labels == ["fullkv", "evenly@0.3", "evenly@0.3[window=8]"]
    assert all(r.error is None and 0.25 < (r.ratio_bytes or 0) <= 1 for r in run.records())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": "tiny-randon"}, "did you mean tiny-random"),
        ({"tasks": ["qaspar"]}, "qasper"),
        ({"methods": "snapkvv"}, "did you mean snapkv"),
        ({"methods": []}, "methods=[] names none"),
        ({"methods": SnapKV}, "is not a method: give SnapKV()"),
        ({"methods": ["snapkv", 3]}, "methods: 3 is not a method"),
        ({"budgets": 1.5}, "budget 1.5 is out of range"),
        ({"budgets": ["a lot"]}, "budget 'a lot' is not a number"),
        ({"data": "/no/such/folder"}, "does not exist"),
        ({"protocol": "papers"}, "protocol=papers is unknown"),
        ({"limit": -1}, "limit=-1 is not a whole number"),
        ({"words": ["budgett=0.2"]}, "budgett"),
        ({"tasks": ["qasper", "needle"], "out": None}, "give out=FOLDER, or a call for each"),
    ],
)
def test_a_mistake_raises_one_line_and_leaves_nothing(
    arguments: dict[str, object], said: str, tmp_path: Path
) -> None:
    settings = {"model": "tiny-random", "tasks": "qasper", "out": tmp_path / "run", **arguments}
    with pytest.raises(UserError) as error:
        kvbench.evaluate(**settings)  # type: ignore[arg-type]
    assert said in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_nothing_is_printed_and_progress_can_be_turned_off(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["not", "to", "be", "read", "--nor=this"])
    run = kvbench.evaluate(
        "tiny-random", "qasper", "snapkv", 0.3, limit=1, out=tmp_path, words=SHORT, progress=False
    )
    run.table()
    assert sys.argv[0] == "not"
    assert capfd.readouterr() == ("", "")


def test_two_evaluations_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    methods = [["spindlekv", "pyramidinfer"], ["expected_attention", "streamingllm"]]

    def evaluated(number: int, name: str) -> None:
        kvbench.evaluate(
            "tiny-random",
            ["qasper", "trec"],
            methods[number],
            0.4,
            limit=2,
            out=tmp_path / f"{name}{number}",
            words=SHORT,
            progress=False,
        )

    threads = [threading.Thread(target=evaluated, args=(i, "together")) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(2):
        evaluated(number, "alone")
        both = [
            {
                (r.key, r.prediction, tuple(r.kept_tokens), r.error)
                for r in kvbench.load_run(tmp_path / f"{name}{number}").records()
            }
            for name in ("together", "alone")
        ]
        assert len(both[0]) == 12 and both[0] == both[1]


def test_a_cache_is_compressed_in_three_lines_and_serves_many_questions() -> None:
    model = kvbench.load_model("tiny-random", device="cpu")
    context = model.prefill(CONTEXT)
    cache = context.compress("snapkv", budget=0.2)
    assert 0.19 < cache.ratio_bytes <= 0.205 and cache.nbytes == cache.ledger.cache_bytes
    first = cache.generate("When was it built?", max_new_tokens=8)
    assert isinstance(first, str)
    assert cache.generate("Of what?", max_new_tokens=8) is not None
    assert cache.generate("When was it built?", max_new_tokens=8) == first
    for method in ("spindlekv", "pyramidinfer", "kvzip", SnapKV(window=8), Evenly()):
        assert context.compress(method, budget=0.4).ratio_bytes < 0.45
    assert context.compress("snapkv", budget=0.2, window=8).variant.label == (
        "snapkv@0.2[window=8]"
    )


def test_the_whole_cache_answers_as_transformers_does() -> None:
    model = kvbench.load_model("tiny-random", device="cpu")
    cache = model.prefill(CONTEXT, chat=False).compress("fullkv", budget=1.0)
    ours = cache.generate(" When?", max_new_tokens=6)
    ids = model.tokenizer(CONTEXT + " When?", return_tensors="pt").input_ids
    with torch.inference_mode():
        for _ in range(6):
            best = model.network(input_ids=ids).logits[0, -1].argmax()
            ids = torch.cat([ids, best.view(1, 1)], 1)
    assert ours == model.tokenizer.decode(ids[0, -6:], skip_special_tokens=True)


def test_a_network_in_memory_is_wrapped(tiny: object) -> None:
    loaded = kvbench.load_model("tiny-random", device="cpu").loaded
    model = kvbench.wrap(loaded.network, loaded.tokenizer, name="mine")
    cache = model.prefill(CONTEXT, methods=["h2o", "snapkv"]).compress("h2o", budget=0.3)
    assert cache.ratio_bytes < 0.31 and cache.generate("?", max_new_tokens=2) is not None
    with pytest.raises(UserError, match="not a fast tokenizer"):
        kvbench.wrap(loaded.network, object())


def test_a_model_that_is_not_there_is_one_line() -> None:
    for name, said in (("tiny-randon", "did you mean tiny-random"), ("./no/folder", "./no/folder")):
        with pytest.raises(UserError, match=said):
            kvbench.load_model(name)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda c: c.compress("snapkvv", budget=0.2), "did you mean snapkv"),
        (lambda c: c.compress("snapkv", budget=2.5), "out of range"),
        (lambda c: c.compress("snapkv", budget=0.2, windw=3), "window"),
        (lambda c: c.compress("windowkv", budget=0.2), "task_type"),
        (lambda c: c.compress(SnapKV(), budget=0.2, window=3), "fields are of a method's name"),
        (
            lambda c: c.compress("snapkv", budget=0.2).generate("?", max_new_tokens=0),
            "max_new_tokens=0 is not a whole number",
        ),
    ],
)
def test_a_wrong_cache_is_one_line(wrong: object, said: str) -> None:
    context = kvbench.load_model("tiny-random", device="cpu").prefill(CONTEXT)
    with pytest.raises(UserError) as error:
        wrong(context)  # type: ignore[operator]
    assert said in str(error.value) and "\n" not in str(error.value)


def test_methods_are_listed_as_the_command_lists_them() -> None:
    printed = CliRunner().invoke(app, ["list", "methods"]).stdout
    # What is said of one may go on in further lines, indented.
    named = [line.split()[0] for line in printed.splitlines() if not line.startswith(" ")]
    assert named == [choice.name for choice in kvbench.list_methods()]


@pytest.mark.slow
def test_on_the_embedded_model_the_call_and_the_command_agree(
    smollm2: object, tmp_path: Path
) -> None:
    run = kvbench.evaluate(
        "smollm2-135m",
        ["hotpotqa"],
        ["snapkv", "spindlekv"],
        [0.2],
        limit=1,
        out=tmp_path / "api",
        words=["protocol.max_new_tokens=8", "model.device=cpu"],
    )
    words = ["task=hotpotqa", "method=snapkv,spindlekv", "budget=0.2", "limit=1"]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "kvbench", "run", *words, "protocol.max_new_tokens=8"),
            *("model.device=cpu", f"out={tmp_path / 'command'}"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    sides = [
        json.dumps(sorted((r.key, r.prediction, r.ratio_bytes) for r in side.records()))
        for side in (run, kvbench.load_run(tmp_path / "command"))
    ]
    assert sides[0] == sides[1]


@pytest.mark.slow
def test_the_readmes_python_runs_as_it_stands(
    smollm2: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readme = (Path(__file__).resolve().parents[1] / "README.md").read_text(encoding="utf-8")
    section = readme.partition("## As a library")[2].partition("\n## ")[0]
    blocks = [block.partition("```")[0] for block in section.split("```python\n")[1:]]
    assert len(blocks) == 2
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    scores = names["scores"]
    assert isinstance(scores, pandas.Series) and len(scores) == 10
