from __future__ import annotations

import dataclasses
import json
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.base.errors import UserError
from kvbench.config.catalog import field_sources
from kvbench.records.reader import distinct, done_keys, failed_keys, read_shards
from kvbench.records.record import Record
from kvbench.records.rescore import scores_of
from kvbench.records.summary import Summary
from kvbench.records.writer import Writer
from kvbench.report.look import Look
from kvbench.report.render import report
from kvbench.report.sheets.status import status_text
from support.paths import ROOT, TESTS
from support.runs import A_RECORD, header, typed_header, write_shard

WRITE_FOREVER = """
import sys
from dataclasses import replace
from pathlib import Path
from support.runs import A_RECORD, typed_header
from kvbench.records.writer import Writer
with Writer(Path(sys.argv[1]), typed_header()) as writer:
    for i in range(10**9):
        writer.append(replace(A_RECORD, key=f"{sys.argv[2]} {i}", prediction="x" * 5000))
"""


def shard_of(folder: Path) -> Path:
    (path,) = folder.glob("*.jsonl")
    return path


def test_a_written_record_reads_back_equal(tmp_path: Path) -> None:
    record = dataclasses.replace(A_RECORD, prediction='猫 "quoted"\r\n\u2028 end')
    with Writer(tmp_path / "run", typed_header()) as writer:
        writer.append(record)
    (shard,) = read_shards(tmp_path / "run")
    assert shard.records == (record,)
    assert shard.header == typed_header()


def test_a_lone_surrogate_in_a_prediction_can_be_written(tmp_path: Path) -> None:
    with Writer(tmp_path, typed_header()) as writer:
        writer.append(dataclasses.replace(A_RECORD, prediction="a\ud800b"))
    (shard,) = read_shards(tmp_path)
    assert shard.records[0].prediction == "a?b"


def test_nothing_is_created_before_the_first_record(tmp_path: Path) -> None:
    with Writer(tmp_path / "a" / "run", typed_header()):
        pass
    assert list(tmp_path.iterdir()) == []


def test_every_writer_has_its_own_shard(tmp_path: Path) -> None:
    with Writer(tmp_path, typed_header()) as one, Writer(tmp_path, typed_header()) as other:
        one.append(A_RECORD)
        other.append(dataclasses.replace(A_RECORD, key="k2"))
    assert len(read_shards(tmp_path)) == 2
    assert done_keys(tmp_path) == {"k", "k2"}


def test_a_torn_last_line_and_foreign_lines_are_skipped(tmp_path: Path) -> None:
    path = write_shard(tmp_path, header(), [A_RECORD])
    with path.open("ab") as file:
        file.write(b'[1]\n{"kind": "note"}\n{"kind": "record", "key": "torn", "pred\xe7')
    (tmp_path / "foreign.jsonl").write_text('{"pred": "x"}\n', encoding="utf-8")
    assert done_keys(tmp_path) == {"k"}


def test_a_key_counts_once_and_success_wins_over_failure(tmp_path: Path) -> None:
    failed = dataclasses.replace(A_RECORD, error="out of memory", score=None)
    later = dataclasses.replace(A_RECORD, score=0.5)
    write_shard(tmp_path, header(), [failed])
    assert done_keys(tmp_path) == set()
    write_shard(tmp_path, header(), [A_RECORD])
    write_shard(tmp_path, header(), [later])
    assert [record for _, record in distinct(read_shards(tmp_path))] == [A_RECORD]


def test_another_schema_version_is_refused_in_one_line(tmp_path: Path) -> None:
    write_shard(tmp_path, header(schema=99), [A_RECORD])
    with pytest.raises(UserError, match="schema 99") as error:
        done_keys(tmp_path)
    assert "\n" not in str(error.value)


def test_a_folder_that_does_not_exist_has_no_done_keys(tmp_path: Path) -> None:
    assert done_keys(tmp_path / "nowhere") == set()


def test_out_below_a_file_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match="out=PATH"):
        Writer(tmp_path / "file" / "run", typed_header())


def test_a_folder_where_no_file_can_be_made_is_refused() -> None:
    with pytest.raises(UserError, match="cannot write records to"):
        Writer(Path("/proc/self/run"), typed_header())


def test_a_full_disk_is_one_line_and_leaves_no_torn_record(tmp_path: Path) -> None:
    def limit_file_size() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))

    done = subprocess.run(
        [sys.executable, "-c", WRITE_FOREVER, str(tmp_path / "run"), "a"],
        cwd=TESTS,
        preexec_fn=limit_file_size,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "kvbench.base.errors.UserError: cannot write records to" in done.stderr
    content = shard_of(tmp_path / "run").read_bytes()
    assert content.endswith(b"}\n")
    assert all(json.loads(line) for line in content.splitlines())


def test_a_killed_writer_loses_at_most_the_line_being_written(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITE_FOREVER, str(tmp_path), name], cwd=TESTS)
        for name in ("a", "b")
    ]
    deadline = time.monotonic() + 60
    while sum(p.stat().st_size > 50_000 for p in tmp_path.glob("*.jsonl")) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    for writer in writers:
        writer.kill()
        writer.wait()
    shards = read_shards(tmp_path)
    assert len(shards) == 2
    for shard in shards:
        whole_lines = shard.path.read_bytes().count(b"\n") - 1
        numbers = [int(r.key.split()[1]) for r in shard.records]
        assert numbers == list(range(len(numbers)))
        assert len(numbers) >= whole_lines


def test_every_record_field_has_a_one_line_docstring() -> None:
    sources = field_sources(Record)
    for field in dataclasses.fields(Record):
        assert re.fullmatch(r"[A-Z0-9`].*\.|.* .*\.", sources[field.name]), field.name


def test_the_schema_in_results_readme_is_what_the_docstrings_say() -> None:
    readme = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    table = readme.partition("one record per (sample, variant)")[2]
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", table, flags=re.M)
    sources = field_sources(Record)
    assert rows == [(f.name, sources[f.name]) for f in dataclasses.fields(Record)]


def test_the_readme_explains_every_entry_of_a_real_header() -> None:
    readme = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    table = readme.partition("the run header")[2].partition("##")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, flags=re.M) == list(header())


def test_a_line_beyond_the_longest_is_skipped_and_what_follows_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvbench.records.reader.LONGEST_LINE", 10_000)
    path = write_shard(tmp_path, header(samples=1), [A_RECORD])
    good = path.read_bytes()
    endless = b'{"kind": "record", "key": "' + b"x" * 40_000 + b'"}\n'
    after = json.dumps({"kind": "record", **dataclasses.asdict(A_RECORD), "key": "after"})
    for exactly in (endless, b"x" * 9_999 + b"\n", b"x" * 10_000 + b"\n", b"x" * 20_000 + b"\n"):
        path.write_bytes(good + exactly + after.encode() + b"\n" + b"y" * 30_000)
        (shard,) = read_shards(tmp_path)
        assert [r.key for r in shard.records] == ["k", "after"]


def test_a_line_of_tens_of_megabytes_is_never_held_whole(tmp_path: Path) -> None:
    path = write_shard(tmp_path, header(), [A_RECORD])
    with path.open("ab") as file:
        for _ in range(3 * 64):
            file.write(b"[" * 2**20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert done_keys(tmp_path) == {"k"}
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB on Linux
    assert grown < 160 * 1024, "192 MiB were written, 64 MiB may be held"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([f.name for f in dataclasses.fields(Record)]), JSON_VALUES)
def test_a_field_of_any_other_type_crashes_no_report(name: str, value: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_shard(Path(folder), header(samples=1), [A_RECORD])
        line = {"kind": "record", **dataclasses.asdict(A_RECORD), "key": "odd", name: value}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        assert "snapkv@0.2" in report(Path(folder), Look(form="markdown", per_task=True))
        assert status_text(Path(folder))
        assert done_keys(Path(folder)) >= {"k"}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(header())), JSON_VALUES)
def test_a_header_of_other_types_is_read_or_refused_in_one_line(name: str, value: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_shard(Path(folder), {**header(samples=1), name: value}, [A_RECORD])
        try:
            report(Path(folder), Look(form="markdown", per_task=True))
        except UserError as error:
            assert "\n" not in str(error)


def test_torn_duplicated_and_foreign_lines_leave_each_key_once(tmp_path: Path) -> None:
    path = write_shard(tmp_path, header(), [A_RECORD, A_RECORD])
    whole = path.read_bytes()
    foreign = b'\xff\xfe\x00\n[1, 2]\n"text"\n' + b"[" * 100_000 + b'\n{"kind": "other"}\n\r\n'
    path.write_bytes(whole + foreign + whole + whole[: len(whole) // 2])
    (shard,) = read_shards(tmp_path)
    assert {r.key for r in shard.records} == {"k"}
    assert [r.key for _, r in distinct([shard])] == ["k"]


def test_only_what_never_succeeded_counts_as_failed(tmp_path: Path) -> None:
    failed = dataclasses.replace(A_RECORD, error="out of memory", score=None)
    write_shard(tmp_path, header(), [failed, dataclasses.replace(failed, key="other")])
    write_shard(tmp_path, header(), [A_RECORD])
    assert failed_keys(tmp_path) == {"other"}


@pytest.mark.parametrize(("recorded", "differ"), [(1.0, 0), (1 - 1e-14, 0), (0.999, 1), (None, 1)])
def test_a_score_that_differs_a_little_is_said_to_differ(
    tmp_path: Path, recorded: float | None, differ: int
) -> None:
    write_shard(tmp_path, header(), [dataclasses.replace(A_RECORD, score=recorded)])
    found = scores_of(tmp_path)
    assert found.values == {"snapkv@0.2": {"qasper": 100.0}}
    assert found.changes == f"{differ} of 1 scores differ from those recorded"


def test_summaries_add_up_in_every_count() -> None:
    assert Summary(1, 2, 3, 4) + Summary(10, 20, 30, 40) == Summary(11, 22, 33, 44)
