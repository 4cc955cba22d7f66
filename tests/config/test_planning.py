from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from kvbench.base.errors import UserError
from kvbench.base.hashing import fingerprint
from kvbench.config.planning import plan_from_config
from kvbench.config.sweeper import folded_jobs
from kvbench.plan.plan import Plan
from kvbench.tasks.task import Sample
from support.cases import slow


@pytest.fixture(autouse=True, scope="module")
def composing() -> Iterator[None]:
    """One Hydra for the whole file, which knows what it has composed."""
    with hydra.initialize_config_module("kvbench.conf", version_base="1.3"):
        yield


@cache
def plan_of(*words: str) -> Plan:
    overrides = ["model=tiny-random", *words]
    return plan_from_config(hydra.compose("config", overrides), overrides)


def labels(*words: str) -> list[str]:
    return [v.label for v in plan_of(*words).variants]


def jobs_of(*words: str) -> list[list[str]]:
    return folded_jobs(OverridesParser.create().parse_overrides(list(words)))


def a_sample(plan: Plan, **changes: Any) -> Sample:
    sample = Sample(plan.tasks[0], "s", "context", "input", ("answer",), {"length": 3})
    return dataclasses.replace(sample, **changes)


def test_methods_and_budgets_become_variants_of_one_job() -> None:
    (job,) = jobs_of("method=snapkv,streamingllm", "budget=0.2,512")
    assert labels(*job) == [
        "fullkv",
        "snapkv@0.2",
        "snapkv@512",
        "streamingllm@0.2",
        "streamingllm@512",
    ]


def test_every_other_axis_becomes_jobs_that_carry_all_variants() -> None:
    jobs = jobs_of("task=qasper,trec", "method=snapkv", "budget=0.2,0.4", "limit=1,2")
    assert len(jobs) == 4
    assert [job[:2] for job in jobs][:2] == [["task=qasper", "limit=1"], ["task=qasper", "limit=2"]]
    for job in jobs:
        assert labels(*job) == ["fullkv", "snapkv@0.2", "snapkv@0.4"]


@pytest.mark.parametrize(
    "words",
    [
        ("budget=choice(0.2,0.4)",),
        ("budget=range(0.2,0.5,0.2)",),
        ("method=glob(snapkv_*)",),
        ("method.window=8,16",),
        ("method=snapkv", "method.pool=max,average"),
    ],
)
def test_choice_range_glob_and_method_fields_can_be_swept(words: tuple[str, ...]) -> None:
    parser = OverridesParser.create(config_loader=_config_loader())
    (job,) = folded_jobs(parser.parse_overrides(list(words)))
    assert len(plan_of(*job).variants) == 3


def _config_loader() -> Any:
    from hydra.core.global_hydra import GlobalHydra

    return GlobalHydra.instance().config_loader()


def test_a_continuous_sweep_is_refused() -> None:
    with pytest.raises(UserError, match="can be swept"):
        jobs_of("budget=interval(0,1)")


@given(st.text(st.sampled_from("'\\\"=, [](){}$:ab0"), max_size=12))
def test_overrides_travel_to_the_job_whatever_they_hold(value: str) -> None:
    word = "method.pool=" + '"' + value.replace("\\", "").replace('"', "") + '"'
    (override,) = OverridesParser.create().parse_overrides([word])
    (job,) = folded_jobs([override])
    (variants,) = OverridesParser.create().parse_overrides(job)
    row = variants.value()
    assert isinstance(row, list)
    (traveled,) = OverridesParser.create().parse_overrides([str(row[0][0])])
    assert traveled.value() == override.value()


def test_fullkv_is_the_baseline_once_however_it_is_asked_for() -> None:
    assert labels("method=snapkv", "baseline=false") == ["snapkv@0.2"]
    (job,) = jobs_of("method=snapkv,fullkv", "budget=0.2,0.4", "baseline=false")
    assert labels(*job) == ["fullkv", "snapkv@0.2", "snapkv@0.4"]


def test_a_label_names_changed_fields_only() -> None:
    assert labels("method=snapkv", "method.window=16")[1] == "snapkv@0.2[window=16]"
    assert labels("method=snapkv", "method.window=32")[1] == "snapkv@0.2"
    assert labels("method=snapkv_kvf")[1] == "snapkv_kvf@0.2"


def test_out_is_stable_so_that_reruns_resume(tmp_path: Path) -> None:
    assert plan_of().out == Path("results/runs/tiny-random-sample-official")
    data = tmp_path / "my-data"
    data.mkdir()
    assert plan_of(f"data={data}", "protocol=paper").out.name == "tiny-random-my-data-paper"


def test_the_paper_profile_wraps_llama2_only() -> None:
    assert plan_of("protocol=paper").protocol.chat_template == "none"
    llama2 = plan_of("model=llama2-7b-chat", "protocol=paper").protocol
    assert (llama2.chat_template, llama2.max_input_tokens) == ("llama2", 3950)
    official = plan_of("model=llama2-7b-chat").protocol
    assert (official.chat_template, official.max_input_tokens) == ("official", 3500)


def test_the_profile_says_where_answers_stop() -> None:
    samsum = plan_of("task=samsum")
    qasper = plan_of("task=qasper")
    paper = plan_of("protocol=paper").protocol
    (samsum_task,), (qasper_task,) = samsum.tasks, qasper.tasks
    assert samsum.protocol.stops_at_newline(samsum_task)
    assert not samsum.protocol.stops_at_newline(qasper_task)
    assert not paper.stops_at_newline(samsum_task)
    assert [samsum.protocol.min_tokens(t) for t in (samsum_task, qasper_task)] == [1, 0]
    assert [paper.min_tokens(t) for t in (samsum_task, qasper_task)] == [1, 1]


@pytest.mark.parametrize(
    ("word", "named"),
    [
        slow("budget=0", "budget 0"),
        slow("budget=-1", "budget -1"),
        slow("budget=1.5", "budget 1.5"),
        slow("budget=nan", "budget nan"),
        ("budget=1e30", "budget 1e+30 is out of range"),
        slow(f"budget={10**400}", "out of range"),
        slow("budget='a lot'", "budget 'a lot'"),
        ("budget=true", "budget True"),
        slow("limit=0", "limit=0"),
        ("decode.width=0", "decode.width=0"),
        ("decode.cache=codebook", "decode.cache=codebook: it is stored or rows"),
        ("baseline=maybe", "baseline='maybe'"),
        slow("protocol.stop=never", "protocol.stop='never'"),
        slow("protocol.max_input_tokens=0", "protocol.max_input_tokens=0"),
        ("method.window=wide", "method.window='wide' is not a whole number"),
        slow("method.window=1.5", "method.window=1.5 is not a whole number"),
        ("method.theta_key=7", "method.theta_key"),
        ("+method.tehta_key=0.9", "did you mean theta_key?"),
        slow("+model.dtpye=float32", "did you mean dtype?"),
        ("+budgte=0.2", "did you mean budget?"),
        ("~baseline", "baseline is missing"),
        ("data=smaple", "did you mean sample?"),
        ("task.tasks=[qasprr]", "'qasper'"),
        ("method._target_=os.system", "outside kvbench"),
        ("method._target_=kvbench.methods.nosuch.Method", "cannot be found"),
    ],
)
def test_a_bad_value_is_refused_in_one_line(word: str, named: str) -> None:
    with pytest.raises(UserError) as error:
        plan_of(word)
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_a_method_of_the_users_own_runs_when_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from dataclasses import dataclass\n"
        "from kvbench.methods.fullkv import FullKV\n"
        "@dataclass(frozen=True)\n"
        "class Mine(FullKV):\n"
        "    strength: float = 0.5\n"
    )
    (tmp_path / "my_method.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    words = ["method=fullkv", "method._target_=my_method.Mine", "+method.strength=1", "budget=0.3"]
    with pytest.raises(UserError, match="allow_targets=true"):
        plan_of(*words)
    (variant,) = plan_of(*words, "allow_targets=true", "baseline=false").variants
    assert variant.method.strength == 1.0  # type: ignore[attr-defined]


def test_a_module_beside_the_working_folder_is_found_by_what_the_line_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside.py").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"set PYTHONPATH={tmp_path}$"):
        plan_of("method._target_=beside.Mine", "allow_targets=true")


@pytest.mark.parametrize(
    "words",
    [
        ("budget=0.3",),
        slow(("budget=1",)),
        slow(("budget=1.0",)),
        ("method.window=16",),
        slow(("method=streamingllm",)),
        ("model.dtype=bfloat16",),
        slow(("model.random.seed=1",)),
        ("model.max_input_tokens=500",),
        ("+model.chat_template_kwargs.a_flag=false",),
        slow(("protocol.query_aware=false",)),
        ("protocol.first_token=compressed",),
        slow(("protocol.truncation=none",)),
    ],
    ids=" ".join,
)
def test_whatever_changes_a_result_changes_its_key(words: tuple[str, ...]) -> None:
    base = plan_of("method=snapkv", "budget=0.2", "baseline=false")
    other = plan_of("method=snapkv", "budget=0.2", "baseline=false", *words)
    keys = {p.record_key(p.variants[0], a_sample(p)) for p in (base, other)}
    assert len(keys) == 2


@pytest.mark.parametrize(
    "words",
    [
        slow(("out=elsewhere",)),
        slow(("limit=3",)),
        ("decode.width=9",),
        ("task=narrativeqa",),
        ("method.window=32.0",),
    ],
    ids=" ".join,
)
def test_whatever_cannot_change_a_result_leaves_its_key(words: tuple[str, ...]) -> None:
    base = plan_of("method=snapkv", "baseline=false")
    other = plan_of("method=snapkv", "baseline=false", *words)
    keys = {p.record_key(p.variants[0], a_sample(p)) for p in (base, other)}
    assert len(keys) == 1


def test_the_key_covers_the_samples_content() -> None:
    plan = plan_of("method=snapkv", "baseline=false")
    changes: list[dict[str, Any]] = [
        {},
        {"id": "t"},
        {"context": "other"},
        {"input": "other"},
        {"answers": ("other",)},
        {"fields": {"length": 4}},
        {"task": plan.tasks[1]},
    ]
    keys = {plan.record_key(plan.variants[0], a_sample(plan, **c)) for c in changes}
    assert len(keys) == len(changes)


def test_a_samples_content_is_hashed_once_for_all_variants(monkeypatch) -> None:
    plan = plan_of("method=snapkv")
    hashed: list[str] = []
    fields = property(lambda sample: hashed.append(sample.id) or {})
    monkeypatch.setattr(Sample, "scored_fields", fields)
    sample = a_sample(plan)
    assert len({plan.record_key(variant, sample) for variant in plan.variants}) == 2
    assert hashed == [sample.id]


def test_a_fingerprint_ignores_order_and_number_spelling_but_not_type() -> None:
    assert fingerprint({"a": 1, "b": [2.0]}) == fingerprint({"b": (2,), "a": 1.0})
    assert len({fingerprint(x) for x in (1, True, "1", [1], None, 1.5)}) == 6


@pytest.mark.parametrize("value", [math.nan, math.inf, {1: 2}, {"a": {1}}, object()])
def test_what_has_no_unique_json_form_has_no_fingerprint(value: object) -> None:
    with pytest.raises(TypeError):
        fingerprint(value)
