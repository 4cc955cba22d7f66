"""A run folder is somebody else's: nothing in it runs, leaves the folder or acts on a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from kvbench.cli.main import app
from kvbench.report.look import Look
from kvbench.report.page.page import page
from kvbench.report.table.table import tables_of
from support.chromium import in_chromium, needs_chromium
from support.needles import needle_header, needle_records
from support.runs import header, records, write_shard

SCORES = {
    "fullkv": {"qasper": [1.0, 0.5], "trec": [1.0]},
    "snapkv@0.2": {"qasper": [0.7, 0.5], "trec": [0.0]},
}
HEADER = header(labels=list(SCORES), tasks=["qasper", "trec"], samples=2)
RECORDS = [{"kind": "record", **asdict(record)} for record in records(SCORES)]

ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**400, 10**30, 1e308, float("nan"), float("inf"), [], [1, "x"], {}),
    *("", "../../x", "\x1b]0;owned\x07", "<script>x</script>", "$\\frac$", "\ud800", "\0", "2026"),
    *("\u202e", "a\nb\r", "@", "a@b@c", "\\input{x}", "|", "x" * 3000, {"a": [1]}),
)

COMMANDS = (
    ["report"],
    ["report", "--format", "markdown", "--intervals", "--differences", "--ratios"],
    ["report", "--format", "csv"],
    ["report", "--format", "latex", "--tasks"],
    ["report", "--format", "html"],
    ["status"],
    ["score"],
    ["compare"],
)


def places(node: object, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = node.items() if isinstance(node, dict) else enumerate(node)  # type: ignore[var-annotated, arg-type]
    for key, value in inner:
        yield (*above, key)
        if isinstance(value, (dict, list)):
            yield from places(value, (*above, key))


def with_value(node: Any, place: tuple[Any, ...], value: object) -> Any:
    copy = json.loads(json.dumps(node))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return copy


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(places([HEADER, *RECORDS]))),
    st.sampled_from(ODD),
    st.sampled_from(COMMANDS),
)
def test_any_odd_value_of_a_run_folder_is_shown_or_one_line(
    tmp_path_factory: pytest.TempPathFactory,
    place: tuple[Any, ...],
    value: object,
    command: list[str],
) -> None:
    folder = tmp_path_factory.mktemp("run")
    lines = with_value([HEADER, *RECORDS], place, value)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "shard.jsonl").write_text(text, encoding="utf-8")
    folders = [str(folder)] * (2 if command == ["compare"] else 1)
    result = CliRunner().invoke(app, [command[0], *folders, *command[1:]])
    assert result.exit_code in (0, 2), result.exc_info
    if result.exit_code == 2:
        assert result.stderr.startswith("kvbench: ") and result.stderr.count("\n") == 1
    assert not set("\x1b\x07\0\r") & set(result.output)
    assert "<script>x" not in result.stdout or "html" not in command


@pytest.mark.parametrize("command", COMMANDS[:1] + COMMANDS[5:])
@pytest.mark.parametrize("debugging", ["", "1"])
def test_a_fault_of_ours_is_told_apart_from_a_folders_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], debugging: str
) -> None:
    folder = str(write_shard(tmp_path, HEADER, records(SCORES)).parent)

    def broken(*_: object, **__: object) -> None:
        raise KeyError("sorted")

    monkeypatch.setattr("kvbench.records.reader.Record", broken)
    monkeypatch.setenv("KVBENCH_DEBUG", debugging)
    folders = [folder] * (2 if command == ["compare"] else 1)
    result = CliRunner().invoke(app, [command[0], *folders, *command[1:]])
    assert result.exit_code == 1
    *before, said = result.stderr.splitlines()
    assert said.startswith("kvbench: a fault of kvbench's own, please report it (KeyError: 'sorted")
    assert ("KVBENCH_DEBUG=1 shows the traceback" in said) == (not debugging)
    assert any("in broken" in line for line in before) == bool(debugging) == bool(before)


def test_a_mistake_shows_where_it_was_noticed_where_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVBENCH_DEBUG", "1")
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.startswith("Traceback (most recent call last):")
    assert result.stderr.splitlines()[-1].startswith("kvbench: ")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("model", "revision"), 2.5),
        (("model", "dtype"), []),
        (("protocol", "stop"), {"a": 1}),
        (("protocol", "query_aware"), "x"),
        (("config", "task"), "x"),
        (("config", "limit"), [1]),
    ],
)
def test_a_foreign_value_of_a_header_is_named(
    tmp_path: Path, place: tuple[str, ...], value: object
) -> None:
    head = with_value({**HEADER, "config": {**HEADER["config"], "limit": 1}}, place, value)
    folder = write_shard(tmp_path, head, records(SCORES)).parent
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert result.exit_code == 2
    assert f"has a damaged header ({place[-1]} is {value!r})" in result.stderr


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", "..", "a\\b", "a\0b"])
def test_a_tasks_name_does_not_lead_figures_out_of_their_folder(tmp_path: Path, name: str) -> None:
    head = needle_header(["fullkv"], [500], [0])
    head["tasks"][0]["name"] = name
    made = [replace(r, task=name) for r in needle_records("fullkv", {(500, 0): 1.0})]
    folder = tmp_path / "deep" / "run"
    shard = write_shard(folder, head, made)
    result = CliRunner().invoke(app, ["report", str(folder)])
    assert result.exit_code == 2
    assert "has a damaged header (name is" in result.stderr
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [shard]


def test_control_characters_of_records_show_as_their_codes(tmp_path: Path) -> None:
    hostile = "\x1b]52;c;b3duZWQ=\x07\x1b[2Jcat\x9b31m"
    changed = [replace(r, prediction=hostile, sample=hostile, score=0.1) for r in records(SCORES)]
    same = [replace(r, prediction="dog", sample=hostile) for r in records(SCORES)]
    before = write_shard(tmp_path / "a", HEADER, same).parent
    after = write_shard(tmp_path / "b", HEADER, changed).parent
    result = CliRunner().invoke(app, ["compare", str(before), str(after)])
    assert result.exit_code == 0, result.output
    assert r"\x1b]52;c;b3duZWQ=\x07\x1b[2Jcat\x9b31m" in result.stdout
    assert not set("\x1b\x07\x9b") & set(result.output)


def test_the_command_of_a_stored_configuration_is_not_built(tmp_path: Path) -> None:
    head = with_value(HEADER, ("config", "task", "_target_"), "os.system")
    folder = write_shard(tmp_path, head, records(SCORES)).parent
    result = CliRunner().invoke(app, ["score", str(folder)])
    assert result.exit_code == 2 and "outside kvbench" in result.stderr


ATTACKS = (
    "</script><script>document.title='owned'</script>",
    "</style><script>document.title='owned'</script>",
    "</title><script>document.title='owned'</script>",
    "</svg></pre></details><img src=x onerror=\"document.title='owned'\">",
    '"><svg onload="document.title=\'owned\'">',
    "' onmouseover='document.title=\"owned\"' autofocus onfocus='document.title=\"owned\"'",
    "<iframe srcdoc=\"<script>parent.document.title='owned'</script>\"></iframe>",
    "{{ 7*7 }}{% for x in y %}",
)


def attacked(node: Any, attack: str) -> Any:
    """The node with every text an attack follows; what readers take names from stays."""
    if isinstance(node, dict):
        return {k: v if k in KEPT else attacked(v, attack) for k, v in node.items()}
    if isinstance(node, list):
        return [attacked(value, attack) for value in node]
    return node + attack if isinstance(node, str) else node


KEPT = ("kind", "schema", "config", "budget", "key", "suite", "hashes", "code_similarity")
NO_SLASH = str.maketrans("/", "\u2215")


def attacked_page(folder: Path, attack: str) -> str:
    head = attacked(HEADER, attack)
    for task in head["tasks"]:
        task["name"] = task["name"].translate(NO_SLASH)
    lines = [attacked(record, attack) for record in RECORDS]
    for line in lines:
        line["task"] = line["task"].translate(NO_SLASH)
        line["budget_unit"] = "fraction"
    text = "".join(json.dumps(line) + "\n" for line in [head, *lines])
    folder.mkdir()
    (folder / "shard.jsonl").write_text(text, encoding="utf-8")
    return page(tables_of(folder), Look(form="html"))


@pytest.mark.slow
@needs_chromium
def test_no_text_of_a_run_executes_in_a_browser(tmp_path: Path) -> None:
    pages = [attacked_page(tmp_path / str(n), attack) for n, attack in enumerate(ATTACKS)]
    opened = (
        "<script>document.querySelectorAll('details').forEach((d) => { d.open = true })</script>"
    )
    for number, text in enumerate([*pages, pages[0].replace("</head>", ATTACKS[0] + "</head>")]):
        assert text.count("owned") >= 20 or number == len(ATTACKS) - 1
        path = tmp_path / f"{number}.html"
        path.write_text(text.replace("</body>", opened + "</body>"), encoding="utf-8")
        title = in_chromium(path, tmp_path / "profile", 900).partition("<title>")[2]
        title = title.partition("</title>")[0]
        # The last page is attacked behind the template's back: there the attack does run.
        assert (title == "owned") == (number == len(pages)), number
