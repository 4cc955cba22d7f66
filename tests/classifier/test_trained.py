"""Task classifiers: training, testing, saving, and what a run makes of them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from statistics import fmean

import hydra
import pytest
import torch
from typer.testing import CliRunner

from kvbench.base.errors import UserError
from kvbench.classifier.trained import (
    AGGREGATION,
    LOCALISATION,
    MANIFEST,
    TfidfClassifier,
    both_ends,
    classifier_digest,
    encoder_ids,
    load,
    task_types,
    words_at_both_ends,
)
from kvbench.classifier.training import (
    Example,
    HeldOut,
    Training,
    held_out_scores,
    labeled_prompts,
    split,
    train,
    trained_tfidf,
)
from kvbench.cli.main import app
from kvbench.config.planning import plan_from_config
from kvbench.data.source import open_source
from kvbench.methods.windowkv import WindowKV
from kvbench.run.loop import execute
from kvbench.tasks.longbench import LongBench
from support.cli import one_line

TRAINING = Training(epochs=6, batch_size=8, learning_rate=3e-3, dropout=0.1, splits=1)


def _examples(count=60):
    """Prompts whose last words tell the type; the rest is noise."""
    rng = random.Random(0)
    noise = ["river", "stone", "paper", "cloud", "green", "seven", "market", "winter"]
    asked = {
        LOCALISATION: "answer the question concisely where who when",
        AGGREGATION: "write a summary of the whole report in one page",
    }
    return [
        Example(" ".join(rng.choices(noise, k=rng.randrange(5, 40))) + " " + asked[t], t)
        for t in asked
        for _ in range(count)
    ]


def _encoder(folder):
    """A random one-layer BERT of words, saved as any hub model is."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = sorted({w for e in _examples() for w in e.text.split()})
    vocabulary = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]"
    )
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
    )
    BertModel(config).save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return str(folder)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return _encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory, encoder):
    """Folder and test result of a classifier of each kind."""
    pytest.importorskip("sklearn", reason="the extra classifier is not installed")
    torch.set_num_threads(1)
    found = {}
    for kind, path in (("tfidf", None), ("encoder", encoder)):
        out = tmp_path_factory.mktemp("trained") / kind
        tested = train(out, _examples(), replace(TRAINING, encoder=path))
        found[kind] = (str(out), tested.held_out)
    return found


@pytest.mark.parametrize("kind", ["tfidf", "encoder"])
def test_a_trained_classifier_beats_chance_and_is_loaded_as_it_was_tested(trained, kind):
    folder, found = trained[kind]
    assert found.prompts == 12
    assert found.accuracy > 0.8
    held_out = split(_examples(), 0)[1]
    assert held_out_scores(load(folder), held_out) == found
    assert load(folder).task_type("who answer the question concisely") == LOCALISATION
    assert load(folder).task_type("write a summary of the whole report") == AGGREGATION


@pytest.mark.parametrize("kind", ["tfidf", "encoder"])
def test_the_same_seed_trains_the_same_classifier(trained, kind, encoder, tmp_path):
    folder, found = trained[kind]
    state = torch.random.get_rng_state()
    path = encoder if kind == "encoder" else None
    again = train(tmp_path / "again", _examples(), replace(TRAINING, encoder=path))
    assert again.held_out == found
    assert classifier_digest(str(tmp_path / "again")) == classifier_digest(folder)
    assert torch.equal(state, torch.random.get_rng_state())


def test_trained_tfidf_says_what_scikit_learn_says():
    pytest.importorskip("sklearn", reason="the extra classifier is not installed")
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    rng = random.Random(1)
    words = [f"word{i}" for i in range(40)]
    examples = [
        Example(
            " ".join(rng.choices(words[i % 2 * 5 :], k=rng.randrange(1, 30))),
            (LOCALISATION, AGGREGATION)[i % 2],
        )
        for i in range(120)
    ]
    ours = trained_tfidf(examples, 0)
    vectorizer = TfidfVectorizer(analyzer=words_at_both_ends)
    features = vectorizer.fit_transform(e.text for e in examples)
    theirs = LogisticRegression(class_weight="balanced", max_iter=1000, random_state=0)
    theirs.fit(features, [e.task_type == AGGREGATION for e in examples])
    texts = [" ".join(rng.choices([*words, "unseen"], k=12)) for _ in range(200)]
    expected = theirs.predict(vectorizer.transform([*texts, "", "unseen"]))
    found = [ours.task_type(t) == AGGREGATION for t in [*texts, "", "unseen"]]
    assert found == expected.tolist()
    assert 0 < sum(found) < len(found)


def test_only_both_ends_of_a_prompt_are_read(trained, encoder):
    assert both_ends(list(range(10)), 2) == [0, 1, 8, 9]
    assert both_ends(list(range(4)), 2) == [0, 1, 2, 3]
    ends = words_at_both_ends("First " + "middle " * 1000 + "last")
    assert (len(ends), ends[0], ends[-1]) == (512, "first", "last")
    network, tokenizer = load(trained["encoder"][0]).network, load(trained["encoder"][0]).tokenizer
    ids = encoder_ids(network, tokenizer, "river " * 30 + "stone " * 30)
    river, stone = tokenizer.convert_tokens_to_ids(["river", "stone"])
    # Forty positions: the special tokens at the ends are among them.
    assert ids == [2, *[river] * 19, *[stone] * 19, 3]


def test_recall_and_f1_count_localization_as_positive():
    class Always(TfidfClassifier):
        def task_type(self, text):
            return text

    said = [(LOCALISATION, LOCALISATION)] * 3 + [(LOCALISATION, AGGREGATION)]
    said += [(AGGREGATION, LOCALISATION)] * 2 + [(AGGREGATION, AGGREGATION)] * 4
    found = held_out_scores(Always({}, 0.0), [Example(text, truth) for truth, text in said])
    assert found == HeldOut(prompts=10, accuracy=0.7, recall=0.75, f1=pytest.approx(2 / 3))


def test_a_tenth_of_each_task_type_is_held_out_and_never_trained_on():
    examples = [Example(str(i), LOCALISATION) for i in range(40)]
    examples += [Example(str(i), AGGREGATION) for i in range(40, 45)]
    kept, held_out = split(examples, 0)
    assert sorted(kept + held_out, key=examples.index) == examples
    assert [e.task_type for e in held_out] == [LOCALISATION] * 4 + [AGGREGATION]
    assert split(examples, 0) == (kept, held_out) != split(examples, 1)


def test_each_split_and_each_left_out_task_is_a_training_of_its_own(tmp_path):
    pytest.importorskip("sklearn", reason="the extra classifier is not installed")
    # The words of `odd` are those of the other type, so no other task can tell it.
    kinds = {"qa": LOCALISATION, "report": AGGREGATION, "odd": AGGREGATION, "page": AGGREGATION}
    asked = {"qa": "who where", "odd": "who where", "report": "in one page", "page": "in one page"}
    examples = [
        Example(f"{asked[task]} {task}{i} {asked[task]}", task_type, task)
        for task, task_type in kinds.items()
        for i in range(10)
    ]
    training = Training(splits=3, seed=5)
    tested = train(tmp_path / "out", examples, training)
    for seed, found in zip((5, 6, 7), tested.splits, strict=True):
        kept, held_out = split(examples, seed)
        assert found == held_out_scores(trained_tfidf(kept, seed), held_out)
    left_out = {found.task: found for found in tested.left_out}
    assert left_out.keys() == {"report", "odd", "page"}, "without qa nothing localizes"
    for task, found in left_out.items():
        others = trained_tfidf([e for e in examples if e.task != task], 5)
        own = [e for e in examples if e.task == task]
        assert found.right == sum(others.task_type(e.text) == kinds[task] for e in own)
        assert (found.prompts, found.task_type) == (10, AGGREGATION)
    assert (left_out["odd"].right, left_out["report"].right) == (0, 10)
    assert "aggregation 20 of 30 right; none right of odd" in tested.lines[1]
    quick = train(tmp_path / "out", examples, Training(splits=1, leave_out=False))
    assert (len(quick.splits), quick.left_out) == (1, ())


def test_prompts_of_a_file_may_say_their_task(tmp_path):
    lines = [{"text": "a", "label": LOCALISATION, "task": "mine"}]
    lines.append({"text": "b", "label": AGGREGATION})
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert [e.task for e in labeled_prompts(str(tmp_path / "p.jsonl"), [])] == ["mine", ""]


def test_longbench_prompts_are_labeled_by_the_oracle():
    examples = labeled_prompts("sample", ["qasper", "trec"])
    assert {e.task for e in examples} == {"qasper", "trec"}
    assert {e.task_type for e in examples} == {LOCALISATION, AGGREGATION}
    (task,) = LongBench(["qasper"]).tasks()
    sample = next(LongBench(["qasper"]).samples(task, open_source("sample")))
    assert examples[0].text == task.template.replace("{context}", sample.context).replace(
        "{input}", sample.input
    )


def test_a_run_reads_the_prompts_with_the_classifier(trained, tmp_path):
    folder, _ = trained["tfidf"]
    with hydra.initialize_config_module("kvbench.conf", version_base="1.3"):
        words = [
            "model=tiny-random",
            "model.context=1024",
            "task=qasper",
            "limit=1",
            "budget=0.3",
            "method=windowkv",
            f"method.classifier={folder}",
            f"out={tmp_path / 'run'}",
        ]
        plan = plan_from_config(hydra.compose("config", words), words)
    execute(plan)
    records = [
        json.loads(line)
        for file in (tmp_path / "run").glob("**/*.jsonl")
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    (record,) = [r for r in records if r.get("method") == "windowkv"]
    (task,) = plan.tasks
    sample = next(plan.suite.samples(task, open_source("sample")))
    assert record["error"] is None
    assert record["facts"]["task_type"] == task_types([folder], sample)[folder]


def test_a_classifier_trained_again_makes_other_records(trained, tmp_path):
    (tmp_path / "tfidf.json").write_text('{"words": {}, "intercept": 1.0}')
    digests = set()
    with hydra.initialize_config_module("kvbench.conf", version_base="1.3"):
        for digest in ("one", "two"):
            manifest = {"kind": "tfidf", "digest": digest}
            (tmp_path / MANIFEST).write_text(json.dumps(manifest))
            words = ["model=tiny-random", "task=qasper", "baseline=false", "method=windowkv"]
            words.append(f"method.classifier={tmp_path}")
            (variant,) = plan_from_config(hydra.compose("config", words), words).variants
            digests.add(variant.digest)
    assert len(digests) == 2


def test_the_command_trains_and_says_how_to_use_it(tmp_path):
    pytest.importorskip("sklearn", reason="the extra classifier is not installed")
    lines = [json.dumps({"text": e.text, "label": e.task_type}) for e in _examples(20)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    out = tmp_path / "classifier"
    words = ["train-classifier", str(out), "--data", str(tmp_path / "prompts.jsonl")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[0].startswith("accuracy 100.00%, recall 100.00%, F1 100.00%")
    assert f"method.classifier={out}" in result.output
    WindowKV(classifier=str(out))
    assert json.loads((out / MANIFEST).read_text())["held_out"]["accuracy"] == 1.0
    assert "10 splits: accuracy 100.00% on average, 100.00% to 100.00%" in result.output
    assert "no task was left out" in result.output, "these prompts say no task"


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ('{"text": "a"}', "line 1: field 'label' is missing"),
        ('{"text": "a", "label": "qa"}', "line 1: field 'label' is 'qa': give localization or"),
        ('{"label": "aggregation"}', "line 1: field 'text' is missing"),
        ('{"text": "a"', "line 1: bad JSON"),
        ('{"text": "a", "label": "aggregation"}', "0 localization prompts are too few"),
        ("", "0 localization prompts are too few"),
    ],
)
def test_bad_prompts_are_refused_in_one_line(tmp_path, lines, complaint):
    (tmp_path / "bad.jsonl").write_text(lines)
    with pytest.raises(UserError) as caught:
        examples = labeled_prompts(str(tmp_path / "bad.jsonl"), [])
        train(tmp_path / "out", examples, TRAINING)
    assert complaint in one_line(caught)
    assert not (tmp_path / "out").exists()


def test_bad_paths_and_settings_are_refused_in_one_line(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.jsonl cannot be read"):
        labeled_prompts(str(tmp_path / "nowhere.jsonl"), [])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("dear")
    with pytest.raises(UserError, match="mine is not a classifier's folder: give a new one"):
        train(tmp_path / "mine", _examples(5), TRAINING)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"encoder .*empty cannot be loaded") as caught:
        train(tmp_path / "out", _examples(5), replace(TRAINING, encoder=str(tmp_path / "empty")))
    one_line(caught)
    bad = {"epochs": 0, "splits": 0, "batch_size": 0, "learning_rate": 0.0, "dropout": 1.0}
    for changed in ({name: value} for name, value in bad.items()):
        with pytest.raises(UserError, match=f"{next(iter(changed))} .* out of range: give"):
            replace(TRAINING, **changed)


@pytest.mark.parametrize(
    ("manifest", "weights"),
    [
        ('{"kind": "tfidf", "digest": "x"}', None),
        ('{"kind": "tfidf", "digest": "x"}', "{"),
        ('{"kind": "tfidf", "digest": "x"}', '{"words": {"a": 1}, "intercept": 0}'),
        ('{"kind": "encoder", "digest": "x"}', None),
        ('{"kind": "pickle", "digest": "x"}', None),
        ("[]", None),
        ("{", None),
        (None, None),
    ],
)
def test_a_broken_classifier_is_refused_in_one_line(tmp_path, manifest, weights):
    if manifest is not None:
        (tmp_path / MANIFEST).write_text(manifest)
    if weights is not None:
        (tmp_path / "tfidf.json").write_text(weights)
    with pytest.raises(UserError) as caught:
        load(str(tmp_path))
    assert str(tmp_path) in one_line(caught)


def test_a_method_refuses_a_folder_without_a_classifier_when_it_is_made(tmp_path):
    with pytest.raises(UserError, match=r"method\.classifier=.*holds no trained classifier: give"):
        WindowKV(classifier=str(tmp_path))


def test_the_papers_table_is_one_run_and_one_report(tmp_path, monkeypatch):
    pytest.importorskip("sklearn", reason="the extra classifier is not installed")
    monkeypatch.chdir(tmp_path)
    preset = "experiment=windowkv/table4"
    run = ["run", preset, "model=tiny-random", "classifier.encoder=null"]
    done = CliRunner().invoke(app, run)
    assert done.exit_code == 0, done.output
    folder = "results/runs/windowkv-table4"
    WindowKV(classifier=folder)
    splits = json.loads((tmp_path / folder / MANIFEST).read_text())["splits"]
    report = CliRunner().invoke(app, ["report", preset]).stdout
    for name, published in (("accuracy", "92.69"), ("recall", "95.19"), ("f1", "94.75")):
        mean = 100 * fmean(split[name] for split in splits)
        for text in (f"{mean:.2f}", published, f"{mean - float(published):+.2f}†"):
            assert text in report
    assert "Each task left out of the training: localization " in report
    assert "other encoder (ours TF-IDF, published bert-base-cased)" in report
    assert "TF-IDF" in CliRunner().invoke(app, ["report", folder]).stdout


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("classifier.epochs=0", "epochs 0 is out of range"),
        ("classifier.epocs=1", "epocs"),
        ("shards=2", "shards=2: analysis=classifier is one job"),
    ],
)
def test_a_wrong_word_of_the_papers_table_is_one_line(tmp_path, monkeypatch, word, said):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["run", "experiment=windowkv/table4", word])
    assert done.exit_code == 2
    assert said in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "results").exists()
