"""`kvbench lm-eval`: lm-eval's tasks under compressed caches, beside lm-eval's own model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from support.cases import slow

pytest.importorskip("lm_eval", reason="the extra lmeval is not installed")

import datasets
from lm_eval import simple_evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from kvbench.base.errors import UserError
from kvbench.cli.main import app
from kvbench.config.sweeper import plans_of_words
from kvbench.lmeval import answers as answering
from kvbench.lmeval.command import own_words, run_lm_eval
from kvbench.lmeval.model import KVBench
from kvbench.model.loading import LoadedModel
from kvbench.model.random import byte_tokenizer, random_llama
from kvbench.plan.plan import Plan
from kvbench.prefill.capture import capture
from kvbench.records.reader import distinct, lines_of_kind, read_shards
from kvbench.records.record import Record
from support.cli import one_line
from support.models import shipped_spec

TINY = ["model=tiny-random", "model.device=cpu"]
LOGPROB = 1e-4
"""Largest difference of a log-likelihood in float32 from lm-eval's own model's: sums over up to
some tens of tokens, by other kernels and batch shapes."""

STORIES = [
    ("The dog ran home and the cat sat by the fire. " * 3 + "The dog was", " tired"),
    ("One and two are three, and three and four are", " seven"),
    ("A red boat lay on the sand. The boat was", " red and old"),
]
QUESTIONS = [
    ("The sky is blue by day. By day the sky is", ["blue", "green and tall", "of wood"], 0),
    ("Ice is cold and fire is hot, as all know. Ice is", ["hot", "cold"], 1),
    ("A cow gives milk and a hen lays eggs. A hen lays", ["milk", "eggs", "a fire", "stones"], 1),
]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture
def local_tasks(tmp_path: Path) -> Path:
    """A folder of lm-eval tasks of every kind, over local JSON lines."""
    folder = tmp_path / "tasks"
    folder.mkdir()

    def write(name: str, documents: list[dict[str, Any]], **config: Any) -> None:
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(d) + "\n" for d in documents), encoding="utf-8")
        common = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(data)}},
            "test_split": "test",
        }
        text = yaml.safe_dump({**common, **config}, sort_keys=False)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")

    stories = [{"text": text, "end": end} for text, end in STORIES]
    questions = [{"q": q, "choices": c, "gold": g} for q, c, g in QUESTIONS]
    write(
        "endings",
        stories,
        output_type="loglikelihood",
        doc_to_text="{{text}}",
        doc_to_target="{{end}}",
        metric_list=[
            {"metric": "perplexity", "aggregation": "perplexity", "higher_is_better": False},
            {"metric": "acc", "aggregation": "mean", "higher_is_better": True},
        ],
    )
    write(
        "choices",
        questions,
        output_type="multiple_choice",
        doc_to_text="{{q}}",
        doc_to_choice="{{choices}}",
        doc_to_target="gold",
        metric_list=[{"metric": "acc"}, {"metric": "acc_norm"}],
    )
    write(
        "writing",
        stories,
        output_type="generate_until",
        doc_to_text="{{text}}",
        doc_to_target="{{end}}",
        generation_kwargs={"until": ["\n\n"], "max_gen_toks": 24, "do_sample": False},
        metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    )
    write(
        "rolling",
        stories,
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=[{"metric": "word_perplexity"}],
    )
    write(
        "sampling",
        stories,
        output_type="generate_until",
        doc_to_text="{{text}}",
        doc_to_target="{{end}}",
        generation_kwargs={"until": ["."], "do_sample": True, "temperature": 0.7},
        metric_list=[{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    )
    return folder


ALL = ["endings", "choices", "writing"]


def evaluated(lm: Any, folder: Path, names: list[str], **settings: Any) -> Mapping[str, Any]:
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    results = simple_evaluate(lm, tasks=names, task_manager=manager, **settings)
    assert results is not None
    return results


def assert_same_answers(ours: Mapping[str, Any], stock: Mapping[str, Any]) -> None:
    """Texts and choices equal; log-likelihoods and perplexities within float32's noise."""
    for name, samples in stock["samples"].items():
        for mine, theirs in zip(ours["samples"][name], samples, strict=True):
            assert mine["arguments"] == theirs["arguments"]
            for answer, expected in zip(mine["resps"], theirs["resps"], strict=True):
                if isinstance(expected[0], str):
                    assert answer == expected
                else:
                    assert answer[0][0] == pytest.approx(expected[0][0], abs=LOGPROB)
                    assert answer[0][1] == expected[0][1]
        for metric, value in stock["results"][name].items():
            if isinstance(value, float):
                assert ours["results"][name][metric] == pytest.approx(value, rel=1e-4), metric


def stock_tiny() -> HFLM:
    """lm-eval's own model over the same random Llama."""
    shape = shipped_spec("tiny-random").random_shape
    tokenizer = byte_tokenizer(shape.context)
    network = random_llama(shape).eval()
    return HFLM(pretrained=network, tokenizer=tokenizer, batch_size=2)


def ours(*words: str) -> KVBench:
    return KVBench(plan_of([*TINY, *words]))


@pytest.mark.parametrize(
    ("template", "first_token"),
    [(False, "prefill"), slow(True, "compressed")],
    ids=["plain", "chat"],
)
def test_fullkv_answers_as_lm_evals_own_model(local_tasks, template, first_token):
    lm = ours("method=fullkv", f"protocol.first_token={first_token}")
    settings = {"apply_chat_template": template, "bootstrap_iters": 0}
    mine = evaluated(lm, local_tasks, ALL, **settings)
    assert_same_answers(mine, evaluated(stock_tiny(), local_tasks, ALL, **settings))


@pytest.mark.slow
def test_a_prompt_too_long_loses_its_beginning_as_in_lm_evals_own_model(local_tasks):
    lm = ours("method=fullkv", "model.random.context=64")
    network = random_llama(lm.plan.model.random_shape).eval()
    stock = HFLM(pretrained=network, tokenizer=byte_tokenizer(64), batch_size=1)
    mine = evaluated(lm, local_tasks, ALL, bootstrap_iters=0)
    assert_same_answers(mine, evaluated(stock, local_tasks, ALL, bootstrap_iters=0))
    assert any(answer.tokens_cut for answer in lm.answers.values())


@pytest.mark.slow
def test_a_budget_of_all_answers_as_fullkv_and_a_third_does_not(local_tasks):
    full = evaluated(ours("method=fullkv"), local_tasks, ALL, bootstrap_iters=0)
    same = evaluated(ours("method=snapkv", "budget=4096"), local_tasks, ALL, bootstrap_iters=0)
    assert_same_answers(same, full)
    lm = ours("method=streamingllm", "budget=0.3")
    third = evaluated(lm, local_tasks, ALL, bootstrap_iters=0)
    for name in ALL:
        told = [s["resps"] for s in third["samples"][name]]
        assert told != [s["resps"] for s in full["samples"][name]], name
    assert_ledgers_say(0.3, lm)
    assert third["config"]["kvbench_ratio_bytes"] == pytest.approx(0.3, abs=0.02)


def assert_ledgers_say(budget: float, lm: KVBench) -> None:
    """Each context holds its budget, rounded down to whole tokens."""
    for answer in lm.answers.values():
        assert budget - 1 / answer.prefill_tokens < answer.ledger.ratio_bytes <= budget


def test_every_token_of_a_continuation_is_predicted_from_the_compressed_cache(tiny):
    lm = ours("method=streamingllm", "budget=0.2")
    ids = list(range(40, 90))
    ((likelihood, _),) = scores(lm, ids, [65])
    (answer,) = lm.answers.values()
    assert answer.prefill_tokens == answer.prompt_tokens - 1
    with torch.inference_mode():
        logits = tiny.network(input_ids=torch.tensor([ids])).logits[0, -1].log_softmax(-1)
    assert abs(likelihood - float(logits[65])) > 0.01


def plan_of(words: Sequence[str]) -> Plan:
    """The plan of one variant."""
    return plans_of_words([*words, "baseline=false"])[0]


def scores(lm: KVBench, context: list[int], *continuations: list[int]) -> list[tuple[float, bool]]:
    """What lm-eval is told of token ids."""
    requests = [(("context", f"{ids}"), context, ids) for ids in continuations]
    return lm.likelihoods(requests, disable_tqdm=True)


def test_a_context_of_one_token_predicts_the_first_token_itself(tiny):
    lm = ours("method=fullkv")
    found = scores(lm, [0], [65], [65, 66])
    with torch.inference_mode():
        logits = tiny.network(input_ids=torch.tensor([[0, 65]])).logits[0].log_softmax(-1)
    expected = [float(logits[0, 65]), float(logits[0, 65] + logits[1, 66])]
    assert [likelihood for likelihood, _ in found] == pytest.approx(expected, abs=LOGPROB)


def test_continuations_scored_a_few_at_a_time_score_the_same(monkeypatch):
    rows = [list(range(60, 60 + n)) for n in (1, 4, 2, 9, 3)]
    words = ["method=snapkv", "budget=0.4"]
    together = scores(ours(*words), list(range(40, 140)), *rows)
    monkeypatch.setattr(answering, "MOST_LOGITS", 2 * 10 * 264)
    lm = ours(*words)
    apart = scores(lm, list(range(40, 140)), *rows)
    assert {answer.width for answer in lm.answers.values()} == {1, 2}
    for (one, best), (other, expected) in zip(apart, together, strict=True):
        assert one == pytest.approx(other, abs=LOGPROB) and best == expected


def test_choices_of_a_question_share_one_prefill(local_tasks, monkeypatch):
    prefilled = counted_prefills(monkeypatch)
    lm = ours("method=snapkv", "budget=0.5")
    evaluated(lm, local_tasks, ["choices"], bootstrap_iters=0)
    assert len(prefilled) == len(QUESTIONS)


def counted_prefills(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counted: list[int] = []

    def counting(model, ids, needs, plan):
        counted.append(len(ids))
        return capture(model, ids, needs, plan)

    monkeypatch.setattr("kvbench.lmeval.model.capture", counting)
    return counted


def test_variants_that_hold_the_whole_prompt_share_one_uncompressed_cache(monkeypatch):
    needed = []
    monkeypatch.setattr(
        "kvbench.lmeval.model.capture",
        lambda model, ids, needs, plan: needed.append(needs) or capture(model, ids, needs, plan),
    )
    words = [["method=h2o", f"budget={budget}"] for budget in (512, 64, 1.0)]
    plans = [plan_of([*TINY, *row]) for row in words]
    lm = KVBench(replace(plans[0], variants=tuple(plan.variants[0] for plan in plans)))
    scores(lm, list(range(3, 63)), [65, 66, 67])
    assert len(lm.answers) == 3
    assert len({id(answer.ledger) for answer in lm.answers.values()}) == 1
    assert {answer.width for answer in lm.answers.values()} == {1}
    assert [n.column_sums for n in needed] == [False], "nothing is captured for nobody"


def test_a_method_with_a_prefill_of_its_own_scores_and_generates(local_tasks):
    lm = ours("method=pyramidinfer", "budget=0.5", "model.random.layers=8")
    results = evaluated(lm, local_tasks, ["endings", "writing"], bootstrap_iters=0)
    assert results["results"]["endings"]["perplexity,none"] > 0
    for answer in lm.answers.values():
        assert answer.ledger.ratio_bytes == pytest.approx(0.5, abs=0.05)


def test_stop_texts_of_several_tokens_end_a_generation(local_tasks):
    lm = ours("method=fullkv")
    instance = _instance("Once upon a time", {"until": [], "max_gen_toks": 40})
    (free,) = lm.generate_until([instance], disable_tqdm=True)
    stop = free[7:10]
    until = {"until": [stop, "never"], "max_gen_toks": 40}
    (ended,) = lm.generate_until([_instance("Once upon a time", until)], disable_tqdm=True)
    assert ended == free[: free.index(stop)]
    lengths = [answer.generated_tokens for answer in lm.answers.values()]
    assert lengths[1] < lengths[0] == 40


def _instance(context: str, settings: Mapping[str, Any]) -> Any:
    from lm_eval.api.instance import Instance

    return Instance("generate_until", {}, (context, settings), 0, ("task", 0, 1))


def test_requests_keep_their_order():
    lm = ours("method=snapkv", "budget=0.5")
    settings = {"until": ["\n"], "max_gen_toks": 5}
    texts = ["short", "a longer prompt than that", "mid size"]
    together = lm.generate_until([_instance(t, settings) for t in texts], disable_tqdm=True)
    alone = [lm.generate_until([_instance(t, settings)], disable_tqdm=True)[0] for t in texts]
    assert together == alone
    assert len(set(together)) == 3


def cli(*words: str) -> Any:
    return CliRunner().invoke(app, ["lm-eval", *TINY, *words])


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def records_of(folder: str) -> list[Record]:
    return [record for _, record in distinct(read_shards(Path(folder)))]


SHORT = ["--gen_kwargs", "max_gen_toks=12"]


@pytest.mark.slow  # gsm8k is among lm-eval's own task files, and all of them are read
def test_samples_of_gsm8k_and_xsum_run_end_to_end_and_are_reported(elsewhere, monkeypatch):
    prefilled = counted_prefills(monkeypatch)
    words = ["method=kvcrush", "method/base=h2o", "budget=0.3,256", "tasks=gsm8k,xsum"]
    result = cli(*words, "data=sample", "limit=2", "--", *SHORT)
    assert result.exit_code == 0, result.output
    for shown in ("gsm8k exact_match, strict-match", "flexible-extract", "xsum rougeL", "kvcrush@"):
        assert shown in result.stdout
    assert len(prefilled) == 4, "one for each prompt"
    found = records_of("results/runs/tiny-random-lm-eval")
    assert len(found) == 4 * 3
    for record in found:
        assert record.error is None
        assert record.suite == "lm-eval"
        assert 0 < record.generated_tokens <= 12
        ratios = {0.3: 0.3, 1.0: 1.0, 256: 256 / record.prompt_tokens}
        assert record.ratio_bytes == pytest.approx(ratios[record.budget], abs=0.01)
    (gsm8k,) = {tuple(r.scores) for r in found if r.task == "gsm8k"}
    assert gsm8k == ("exact_match,strict-match", "exact_match,flexible-extract")
    (xsum,) = {tuple(r.scores) for r in found if r.task == "xsum"}
    assert xsum == ("rougeL", "rouge1", "rouge2")
    report = CliRunner().invoke(app, ["report"])
    assert report.exit_code == 0, report.output
    assert "on lm-evaluation-harness" in report.stdout and "kvcrush@256" in report.stdout


@pytest.mark.slow
def test_a_papers_table_is_run_by_the_command_of_every_preset_and_reported_by_metric(
    elsewhere, monkeypatch
):
    words = ["experiment=kvcrush/table2", *TINY, "limit=1", "baseline=false"]
    run = CliRunner().invoke(app, ["run", *words])
    assert run.exit_code == 0, run.output
    found = records_of("results/runs/kvcrush-table2")
    assert {r.suite for r in found} == {"lm-eval"} and len(found) == 4
    paper = CliRunner().invoke(app, ["report", "experiment=kvcrush/table2"]).stdout
    assert {r.budget for r in found} == {672}
    for text in ("KVCrush/alternate", "76.2", "† cannot be compared: other model", "672 tokens"):
        assert text in paper
    assert " - " not in paper.partition("In each cell")[0]
    report = CliRunner().invoke(app, ["report", "--tasks", "--format", "csv"]).stdout
    assert "gsm8k exact_match,flexible-extract" in report.splitlines()[0]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "columns"), [("figure6", ["gsm8k"]), ("figure8", ["xsum"])])
def test_a_papers_figure_of_lm_evals_tasks_is_run_and_drawn(elsewhere, name, columns):
    words = [f"experiment=kvcrush/{name}", *TINY, "limit=1"]
    run = CliRunner().invoke(app, ["run", *words])
    assert run.exit_code == 0, run.output
    report = CliRunner().invoke(app, ["report", f"experiment=kvcrush/{name}"])
    assert report.exit_code == 0, report.output
    for text in ("budget 512", "budget 672", "25%", "75%", *columns):
        assert text in report.stdout
    assert Path(f"results/runs/kvcrush-{name}/figures/{name}.png").is_file()


def run_local(folder: Path, *words: str, flags: tuple[str, ...] = ()) -> Any:
    out = [] if any(word.startswith("out=") for word in words) else ["out=run"]
    given = ["baseline=false", *out, *words, "--", "--include_path", str(folder), *flags]
    return cli(*given)


def test_a_question_has_one_score_and_a_record_for_each_choice(elsewhere, local_tasks):
    assert run_local(local_tasks, "method=snapkv", "budget=0.5", "tasks=choices").exit_code == 0
    found = records_of("run")
    assert len(found) == sum(len(choices) for _, choices, _ in QUESTIONS)
    assert {r.sample for r in found if r.score is not None} == {"0", "1", "2"}
    assert [r.facts["continuation"] for r in found][:3] == [" " + c for c in QUESTIONS[0][1]]
    for record in found:
        assert record.facts["log_likelihood"] < 0
        assert record.ratio_bytes == pytest.approx(0.5, abs=0.03)
    assert "n = 3 per task" in CliRunner().invoke(app, ["report", "run"]).stdout


@pytest.mark.slow
def test_a_run_that_was_stopped_computes_what_is_missing(elsewhere, local_tasks, monkeypatch):
    words = ["method=snapkv", "budget=0.5", "tasks=endings,writing"]
    monkeypatch.setattr("kvbench.lmeval.model.generated", _fails)
    assert isinstance(run_local(local_tasks, *words).exception, KeyError)
    assert records_of("run") == []
    assert len(list(lines_of_kind(Path("run"), "answer"))) == len(STORIES)

    monkeypatch.setattr("kvbench.lmeval.model.generated", answering.generated)
    prefilled = counted_prefills(monkeypatch)
    assert "6 results recorded" in run_local(local_tasks, *words).stdout
    assert len(prefilled) == len(STORIES), "the endings were known"
    first = records_of("run")
    prefilled.clear()
    assert "0 results recorded, 0 of them failed, 6 known" in run_local(local_tasks, *words).stdout
    assert prefilled == [] and records_of("run") == first


def _fails(*_: Any, **__: Any) -> Any:
    raise KeyError("the power is cut")


@pytest.mark.slow
def test_another_variant_joins_the_run_and_reuses_nothing_of_the_first(
    elsewhere, local_tasks, monkeypatch
):
    run_local(local_tasks, "method=snapkv", "budget=0.5", "tasks=endings")
    prefilled = counted_prefills(monkeypatch)
    run_local(local_tasks, "method=snapkv", "budget=0.5,0.3", "tasks=endings")
    assert len(prefilled) == len(STORIES)
    assert {round(r.ratio_bytes, 1) for r in records_of("run")} == {0.5, 0.3}


@pytest.mark.slow
def test_prefills_that_were_kept_serve_another_days_methods(elsewhere, local_tasks, monkeypatch):
    words = ["tasks=endings,writing", "prefill_cache=kept", "budget=0.5"]
    first = run_local(local_tasks, *words, "method=snapkv", flags=tuple(SHORT))
    assert first.exit_code == 0, first.output
    monkeypatch.setattr("kvbench.prefill.disk.capture", _fails)
    second = run_local(local_tasks, *words, "method=streamingllm", flags=tuple(SHORT))
    assert second.exit_code == 0, second.output
    assert {r.method for r in records_of("run")} == {"snapkv", "streamingllm"}


@pytest.mark.slow
def test_lm_evals_flags_reach_the_prompts(elsewhere, local_tasks):
    flags = ("--num_fewshot", "1", "--apply_chat_template", "--system_instruction", "Be brief.")
    result = run_local(local_tasks, "method=fullkv", "tasks=writing", flags=(*flags, *SHORT))
    assert result.exit_code == 0, result.output
    plain = run_local(local_tasks, "method=fullkv", "tasks=writing", flags=tuple(SHORT))
    assert plain.exit_code == 0
    lengths = {}
    for shard in read_shards(Path("run")):
        protocol = shard.header.protocol
        shots = protocol.further["num_fewshot"]
        lengths[shots] = [r.prompt_tokens for r in shard.records]
        assert protocol.chat_template == ("official" if shots else "none")
    assert all(a > b for a, b in zip(lengths[1], lengths[None], strict=True))
    shown = CliRunner().invoke(app, ["report", "run"]).stdout
    assert 'lm-eval: few-shot 1, fewshot_as_multiturn true, system_instruction "Be brief."' in shown
    assert "lm-eval: few-shot as each task says, gen_kwargs" in shown


@pytest.mark.slow
def test_a_group_of_tasks_is_one_column_and_a_pattern_names_several(elsewhere, local_tasks):
    group = {"group": "both", "task": ["endings", "choices"]}
    (local_tasks / "both.yaml").write_text(yaml.safe_dump(group), encoding="utf-8")
    assert run_local(local_tasks, "method=fullkv", "tasks=both").exit_code == 0
    assert {(r.task, r.group) for r in records_of("run")} == {
        ("endings", "both"),
        ("choices", "both"),
    }
    assert run_local(local_tasks, "method=fullkv", "tasks=end*,choices", "out=two").exit_code == 0
    assert {(r.task, r.group) for r in records_of("two")} == {
        ("endings", "endings"),
        ("choices", "choices"),
    }


@pytest.mark.slow
def test_output_path_holds_lm_evals_own_files_of_each_variant(elsewhere, local_tasks):
    flags = ("--output_path", "own", "--log_samples")
    words = ["method=snapkv", "budget=0.5,0.3", "tasks=endings"]
    result = run_local(local_tasks, *words, flags=flags)
    assert result.exit_code == 0, result.exc_info
    for label in ("snapkv@0.5", "snapkv@0.3"):
        names = [path.name for path in Path("own", label).rglob("*.json*")]
        assert sorted(name.split("_")[0] for name in names) == ["results", "samples"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method=snapkv"], "no task is named: give tasks=gsm8k"),
        slow(["tasks=writing", "shards=2"], "shards=2 does not apply"),
        slow(["tasks=writing", "memory=1KiB"], "fullkv: prefill of"),
        slow(["tasks=xsun"], "lm-eval has no task xsun: did you mean xsum?"),
        slow(["tasks=./nowhere.yaml", "allow_targets=true"], "no task ./nowhere.yaml"),
        (["tasks=./nowhere.yaml"], "nowhere.yaml is a file, which can run code outside kvbench"),
        (["tasks=rolling"], "rolling cannot run under a compressed cache: rolling log-likelihood"),
        (["tasks=sampling"], "sampling asks for do_sample=True"),
        slow(["tasks=writing", "budget=2.5"], "budget 2.5 is out of range"),
        slow(["tasks=writing", "method=snapkw"], "did you mean snapkv?"),
        slow(
            ["task=qasper"], "task=qasper does not apply to kvbench lm-eval: name lm-eval's tasks"
        ),
        slow(["tasks=writing", "protocol=paper"], "protocol=paper does not apply"),
        slow(["tasks=writing", "protocol.query_aware=false"], "does not apply"),
        slow(["tasks=xsum", "data=nowhere"], "nowhere/xsum holds none of train.jsonl"),
        slow(["tasks=xsum"], "tasks xsum cannot be loaded: "),
        (["tasks=writing", "--", "--nosuch"], "unrecognized arguments: --nosuch (after --"),
        slow(["tasks=writing", "--", "--limit", "many"], "invalid float value"),
        slow(["tasks=writing", "--", "--model", "hf"], "--model does not apply to kvbench lm-eval"),
        slow(["tasks=writing", "--", "--use_cache", "x"], "--use_cache does not apply"),
        slow(["tasks=writing", "--", "--log_samples"], "--output_path"),
        (["tasks=writing", "--", "--gen_kwargs", "repetition_penalty=2.0"], "repetition_penalty"),
        slow(["tasks=writing", "--", "--gen_kwargs", "max_gen_toks=8192"], "has 8192 positions"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_exit_2_and_leaves_nothing(elsewhere, local_tasks, words, said):
    border = words.index("--") if "--" in words else len(words)
    ours = any(word in ("tasks=writing", "tasks=rolling", "tasks=sampling") for word in words)
    flags = ["--include_path", str(local_tasks)] * ours
    result = cli(*words[:border], "--", *flags, *words[border + 1 :])
    assert result.exit_code == 2, result.output
    last = result.stderr.splitlines()[-1]
    assert last.startswith("kvbench: ") and said in last
    assert list(elsewhere.iterdir()) == []


def test_without_lm_eval_the_command_says_what_to_install(monkeypatch):
    monkeypatch.setattr("kvbench.lmeval.command.find_spec", lambda name: None)
    with pytest.raises(UserError) as error:
        run_lm_eval(["tasks=gsm8k"])
    assert one_line(error) == "lm-eval is not installed: pip install 'kvbench[lmeval]'"


def test_lm_evals_own_help_follows_the_border():
    result = cli("--", "--help")
    assert result.exit_code == 0
    assert "--num_fewshot" in result.stdout


def test_own_words_are_hydras():
    words = ["tasks=a,b", "data=./it's", "out=x", "budget=1,2", "protocol.first_token=compressed"]
    assert own_words(words) == [
        "shards=1",
        "lm_eval.tasks='a,b'",
        "lm_eval.data='./it\\'s'",
        "out=x",
        "budget=1,2",
        "protocol.first_token=compressed",
    ]


@pytest.mark.slow  # lm-eval's own command reads all of its task files
def test_lm_evals_own_command_finds_the_model_by_name(elsewhere, local_tasks, monkeypatch, capsys):
    (point,) = entry_points(group="lm_eval.models")
    assert point.name == "kvbench" and point.load() is KVBench
    from lm_eval.__main__ import cli_evaluate

    arguments = "model=tiny-random,method=kvcrush,method/base=h2o,budget=0.4"
    words = ["lm_eval", "--model", "kvbench", "--model_args", arguments, "--device", "cpu"]
    words += ["--tasks", "endings", "--include_path", str(local_tasks), "--output_path", "own"]
    monkeypatch.setattr("sys.argv", words)
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)
    cli_evaluate()
    (written,) = Path("own").rglob("results*.json")
    config = json.loads(written.read_text())["config"]
    assert config["kvbench_variant"] == "kvcrush@0.4[base=h2o]"
    assert config["kvbench_ratio_bytes"] == pytest.approx(0.4, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "variants"), [("table2", 5), ("table2_512", 5), ("figure6", 11), ("figure8", 7)]
)
def test_presets_hold_their_budgets_on_a_prompt_of_gsm8ks_length(
    elsewhere, local_tasks, name, variants
):
    data = Path("data/writing")
    data.mkdir(parents=True)
    text = "Question: a farmer has seven crates of apples. Answer: 7. " * 16
    line = json.dumps({"text": text, "end": " 7"})
    (data / "test.jsonl").write_text(line + "\n", encoding="utf-8")
    words = [f"experiment=kvcrush/{name}", "tasks=writing", "data=data", "out=run"]
    result = cli(*words, "--", "--include_path", str(local_tasks), *SHORT)
    assert result.exit_code == 0, result.output
    found = records_of("run")
    assert len(found) == variants
    for record in found:
        if record.method != "fullkv":
            kept = sum(record.kept_tokens) / len(record.kept_tokens)
            part_of_a_page = 32 / len(record.kept_tokens) if "paged" in record.method else 1
            assert record.budget - part_of_a_page <= kept <= record.budget


@pytest.mark.slow
def test_on_the_embedded_model_fullkv_equals_lm_evals_own_and_a_third_differs(
    smollm2: LoadedModel, local_tasks
):
    stock = HFLM(pretrained=stock_smollm2(smollm2), tokenizer=smollm2.tokenizer, batch_size=2)
    words = ["model=smollm2-135m", "model.device=cpu"]
    full = KVBench(plan_of([*words, "method=fullkv"]))
    expected = evaluated(stock, local_tasks, ALL, bootstrap_iters=0)
    assert_same_answers(evaluated(full, local_tasks, ALL, bootstrap_iters=0), expected)
    third = KVBench(plan_of([*words, "method=streamingllm", "budget=0.3"]))
    found = evaluated(third, local_tasks, ALL, bootstrap_iters=0)
    for name in ALL:
        told = [s["resps"] for s in found["samples"][name]]
        assert told != [s["resps"] for s in expected["samples"][name]], name
    assert_ledgers_say(0.3, third)


def stock_smollm2(smollm2: LoadedModel) -> Any:
    """The same weights in transformers' own attention."""
    from transformers import AutoModelForCausalLM

    path = smollm2.network.name_or_path
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


@pytest.mark.slow
def test_hydras_own_flags_stand_before_the_border(elsewhere, local_tasks):
    (elsewhere / "mine/method").mkdir(parents=True)
    text = "_target_: kvbench.methods.streamingllm.StreamingLLM\nsinks: 9\n"
    (elsewhere / "mine/method/nine.yaml").write_text(text, encoding="utf-8")
    words = ["tasks=endings", "method=nine", "budget=0.5", "--config-dir", "mine"]
    result = cli(*words, "--", "--include_path", str(local_tasks))
    assert result.exit_code == 0, result.output
    assert "nine@0.5" in {r.variant for r in records_of("results/runs/tiny-random-lm-eval")}
