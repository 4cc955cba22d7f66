"""Records are read as they stand, checked before anything runs, and errors name their place."""

import hashlib
import json
import os
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from kvbench.base.errors import UserError
from kvbench.data import files as data
from kvbench.data.source import open_source

DATA = os.environ.get("KVBENCH_DATA")


def record(number: int = 1, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "input": f"question {number}?",
        "context": f"context {number}\r\nwith \u2028 and \x85 in it\n",
        "answers": [f"answer {number}"],
        "length": 7,
        "dataset": "qasper",
        "language": "en",
        "all_classes": None,
        "_id": f"id{number}",
    }
    return {**fields, **changes}


def jsonl(*records: dict[str, Any], end: str = "\n", ascii: bool = False) -> bytes:
    return "".join(json.dumps(r, ensure_ascii=ascii) + end for r in records).encode()


def said(error: pytest.ExceptionInfo[UserError]) -> str:
    """The message, which must be one line."""
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("ascii", [True, False])
def test_line_ends_inside_records_survive_those_between_them(
    tmp_path: Path, end: str, ascii: bool
) -> None:
    records = [record(1), record(2)]
    (tmp_path / "qasper.jsonl").write_bytes(jsonl(*records, end=end, ascii=ascii))
    assert open_source(tmp_path).records("qasper") == records


def test_a_byte_order_mark_empty_lines_and_a_missing_last_newline_are_no_error(
    tmp_path: Path,
) -> None:
    content = b"\xef\xbb\xbf" + jsonl(record(1)) + b"\n  \n" + jsonl(record(2)).rstrip()
    (tmp_path / "qasper.jsonl").write_bytes(content)
    assert len(open_source(tmp_path).records("qasper")) == 2


def test_unknown_fields_are_kept(tmp_path: Path) -> None:
    (tmp_path / "qasper.jsonl").write_bytes(jsonl(record(1, source="arXiv")))
    assert open_source(tmp_path).records("qasper")[0]["source"] == "arXiv"


@pytest.mark.parametrize("key", sorted(record()))
def test_a_missing_field_names_file_line_and_field(tmp_path: Path, key: str) -> None:
    bad = record(2)
    del bad[key]
    (tmp_path / "qasper.jsonl").write_bytes(jsonl(record(1), bad))
    with pytest.raises(UserError) as error:
        open_source(tmp_path).records("qasper")
    assert f"qasper.jsonl, line 2: field {key!r} is missing" in said(error)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"answers": []}, "field 'answers' is empty"),
        ({"answers": "yes"}, "field 'answers' is a str"),
        ({"answers": ["yes", 3]}, "field 'answers' holds a int"),
        ({"context": None}, "field 'context' holds a NoneType"),
        ({"context": "\ud83d"}, "field 'context' holds half a surrogate pair at character 1"),
        ({"length": -1}, "field 'length' is -1"),
        ({"length": True}, "field 'length' is True"),
        ({"length": "7"}, "field 'length' is '7'"),
        ({"all_classes": "City"}, "field 'all_classes' must be a list"),
        ({"_id": "id1"}, "field '_id' 'id1' stands at"),
    ],
)
def test_a_wrong_field_names_file_line_and_field(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    content = jsonl(record(1), record(2, **changes), ascii=True)
    (tmp_path / "qasper.jsonl").write_bytes(content)
    with pytest.raises(UserError) as error:
        open_source(tmp_path).records("qasper")
    assert f"qasper.jsonl, line 2: {problem}" in said(error)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"input": "x', "bad JSON at column 11"),
        (b"[1, 2]", "holds a list"),
        (b'{"input": "\xff"}', "byte 12 is not UTF-8"),
        (b"[" * 100_000, "JSON nested too deep"),
        (b'{"length": ' + b"9" * 5000 + b"}", "a number has too many digits"),
    ],
)
def test_a_line_that_is_no_json_object_is_named(tmp_path: Path, line: bytes, problem: str) -> None:
    (tmp_path / "qasper.jsonl").write_bytes(jsonl(record(1)) + b"\n" + line + b"\n")
    with pytest.raises(UserError) as error:
        open_source(tmp_path).records("qasper")
    assert f"qasper.jsonl, line 3: {problem}" in said(error)


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "qasper.jsonl").write_bytes(b"\n")
    with pytest.raises(UserError, match="holds no records"):
        open_source(tmp_path).records("qasper")


def test_a_missing_task_file_names_the_nearest_one(tmp_path: Path) -> None:
    for name in ("hotpotqa", "passage_retrieval"):
        (tmp_path / f"{name}.jsonl").write_bytes(jsonl(record()))
    with pytest.raises(UserError) as error:
        open_source(tmp_path).records("passage_retrieval_en")
    assert "lacks passage_retrieval_en.jsonl; the nearest there is passage_retrieval.jsonl" in said(
        error
    )


def test_a_folder_without_any_task_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no <task>\.jsonl at all"):
        open_source(tmp_path).records("qasper")


def test_a_place_that_does_not_exist_is_named_with_the_choices(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        open_source("sampel")
    assert "data=sampel does not exist (did you mean sample?): give hub, sample, or" in said(error)
    single = tmp_path / "qasper.jsonl"
    single.write_bytes(jsonl(record()))
    with pytest.raises(UserError, match="is not a zip file: give a folder or zip"):
        open_source(single)


def test_the_unpacked_archive_is_read_through_its_data_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "qasper.jsonl").write_bytes(jsonl(record()))
    assert open_source(tmp_path).records("qasper") == [record()]


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def test_a_zip_reads_as_its_folder_does_and_has_the_same_hash(tmp_path: Path) -> None:
    content = jsonl(record(1), record(2))
    (tmp_path / "qasper.jsonl").write_bytes(content)
    (tmp_path / "trec.jsonl").write_bytes(jsonl(record(3)))
    path = archive(
        tmp_path / "data.zip",
        {
            "data/qasper.jsonl": content,
            "data/trec.jsonl": jsonl(record(3)),
            "__MACOSX/data/._qasper.jsonl": b"x",
        },
    )
    folder, packed = open_source(tmp_path), open_source(path)
    assert packed.records("qasper") == folder.records("qasper")
    assert packed.content_hash(["qasper", "trec"]) == folder.content_hash(["trec", "qasper"])
    assert folder.content_hash(["qasper"]) != folder.content_hash(["trec"])
    with pytest.raises(
        UserError, match=r"data.zip lacks qaspe\.jsonl; the nearest there is qasper"
    ):
        packed.records("qaspe")


def test_the_content_hash_is_blake2b_over_names_sizes_and_bytes(tmp_path: Path) -> None:
    content = jsonl(record())
    (tmp_path / "qasper.jsonl").write_bytes(content)
    expected = hashlib.blake2b(b"qasper %d\n" % len(content) + content, digest_size=16)
    assert open_source(tmp_path).content_hash(["qasper"]) == expected.hexdigest()


@pytest.mark.parametrize(
    "name", ["../q.jsonl", "/q.jsonl", "a/../../q.jsonl", "C:/q.jsonl", "..\\q.jsonl"]
)
def test_a_zip_member_that_leaves_the_archive_is_refused(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path / "data.zip", {name: jsonl(record())})
    with pytest.raises(UserError, match="leaves the archive: refused"):
        open_source(path)


def test_a_zip_member_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "MAX_FILE_BYTES", 1000)
    path = archive(tmp_path / "data.zip", {"qasper.jsonl": b" " * 1001})
    with pytest.raises(UserError, match="unpacks to 1001 bytes, more than 1000: refused"):
        open_source(path)


def test_a_damaged_zip_member_is_named(tmp_path: Path) -> None:
    path = archive(tmp_path / "data.zip", {"qasper.jsonl": jsonl(*(record(n) for n in range(50)))})
    raw = bytearray(path.read_bytes())
    raw[60:80] = bytes(20)
    path.write_bytes(raw)
    with pytest.raises(UserError) as error:
        open_source(path).records("qasper")
    assert "data.zip, qasper.jsonl cannot be unpacked" in said(error)


def with_bytes(path: Path, changes: dict[int, int], at: bytes) -> None:
    """Change bytes of a zip, counted from the first of a header."""
    raw = bytearray(path.read_bytes())
    start = raw.index(at)
    for offset, value in changes.items():
        raw[start + offset] = value
    path.write_bytes(raw)


@pytest.mark.parametrize(
    "changes",
    [{8: 1}, {10: 99}, {24: 3, 25: 0, 26: 0, 27: 0}],
    ids=["encrypted", "a method nobody has", "says it unpacks to 3 bytes"],
)
def test_a_zip_that_lies_about_a_member_is_named(tmp_path: Path, changes: dict[int, int]) -> None:
    path = archive(tmp_path / "data.zip", {"qasper.jsonl": jsonl(*(record(n) for n in range(50)))})
    with_bytes(path, changes, at=b"PK\1\2")  # its entry in the central directory
    with pytest.raises(UserError) as error:
        open_source(path).records("qasper")
    assert "data.zip, qasper.jsonl cannot be unpacked" in said(error)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_DEFLATED])
def test_damage_of_any_compression_is_one_line_whatever_is_read(
    tmp_path: Path, method: int
) -> None:
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w", method) as made:
        made.writestr("qasper.jsonl", jsonl(*(record(n) for n in range(50))))
    with_bytes(path, dict.fromkeys(range(60, 80), 0xAA), at=b"PK\3\4")
    source = open_source(path)
    for read in (source.records, lambda task: source.content_hash([task])):
        with pytest.raises(UserError) as error:
            read("qasper")
        assert "cannot be unpacked" in said(error)


def test_a_symbolic_link_in_a_zip_is_read_as_text_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.jsonl").write_bytes(jsonl(record()))
    link = zipfile.ZipInfo("qasper.jsonl")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as made:
        made.writestr(link, str(tmp_path / "secret.jsonl"))
    with pytest.raises(UserError, match="line 1: bad JSON"):
        open_source(tmp_path / "data.zip").records("qasper")


def test_a_zip_member_without_a_name_is_passed_over(tmp_path: Path) -> None:
    path = archive(tmp_path / "data.zip", {".": b"x", "qasper.jsonl": jsonl(record())})
    assert len(open_source(path).records("qasper")) == 1


def test_a_line_of_two_gigabytes_is_refused_in_little_memory(tmp_path: Path) -> None:
    with (tmp_path / "qasper.jsonl").open("wb") as file:
        file.truncate(2 * 2**30)  # sparse: no disk is used
    code = (
        "import resource, sys; from kvbench.data.source import open_source\n"
        "from kvbench.base.errors import UserError\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "try: open_source(sys.argv[1]).records('qasper')\n"
        "except UserError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "qasper.jsonl, line 1: more than 67108864 bytes" in done.stdout, done.stderr


def test_the_longest_line_counts_without_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = jsonl(record())
    for most, read in ((len(line) - 1, True), (len(line) - 2, False)):
        monkeypatch.setattr("kvbench.base.jsonl.LONGEST_LINE", most)
        (tmp_path / "qasper.jsonl").write_bytes(line)
        if read:
            assert len(open_source(tmp_path).records("qasper")) == 1
        else:
            with pytest.raises(UserError, match="line 1: more than"):
                open_source(tmp_path).records("qasper")


def test_the_hash_of_a_task_is_of_its_name_size_and_bytes_in_a_folder_and_a_zip(
    tmp_path: Path,
) -> None:
    content = jsonl(*(record(n, context="x" * 3000) for n in range(500)))  # more than one block
    (tmp_path / "qasper.jsonl").write_bytes(content)
    whole = f"qasper {len(content)}\n".encode() + content
    expected = hashlib.blake2b(whole, digest_size=16).hexdigest()
    zipped = archive(tmp_path / "data.zip", {"qasper.jsonl": content})
    assert open_source(tmp_path).content_hash(["qasper"]) == expected
    assert open_source(zipped).content_hash(["qasper"]) == expected


def test_two_files_of_one_task_in_a_zip_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "data.zip", {"a/qasper.jsonl": b"", "b/qasper.jsonl": b""})
    with pytest.raises(UserError, match="keep one file for each task"):
        open_source(path)


def test_the_sample_suite_says_that_it_is_not_longbench() -> None:
    assert "not LongBench" in open_source("sample").description


@pytest.mark.skipif(not DATA, reason="KVBENCH_DATA names no folder of real records")
def test_real_records_of_all_tasks_pass_the_checks_and_keep_their_crlf() -> None:
    source = open_source(Path(DATA or "") / "longbench")
    names = sorted(p.stem for p in (Path(DATA or "") / "longbench").glob("*.jsonl"))
    assert len(names) == 21
    records = [r for name in names for r in source.records(name)]
    assert len(records) == 124
    assert any("\r\n" in r["context"] for r in records)


# The hub: the real client against a server on the loopback device.

COMMITS = {"zip": "a" * 40, "parquet": "b" * 40, "neither": "c" * 40}


class Hub(BaseHTTPRequestHandler):
    """Repositories owner/<layout> with the two endpoints the client uses: info and resolve."""

    files: dict[str, dict[str, bytes]]
    requests: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.requests.append(self.path)
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[:3] == ["api", "datasets", "owner"] and parts[3] in self.files:
            commit = COMMITS[parts[3]]
            if parts[4:] in (["revision", "main"], ["revision", commit]):
                names = [{"rfilename": name} for name in self.files[parts[3]]]
                info = {"id": f"owner/{parts[3]}", "sha": commit, "siblings": names}
                return self._answer(json.dumps(info).encode(), {"Content-Type": "application/json"})
        if parts[:2] == ["datasets", "owner"] and parts[3] == "resolve":
            content = self.files[parts[2]].get("/".join(parts[5:]))
            if content is not None and parts[4] == COMMITS[parts[2]]:
                etag = hashlib.sha256(content).hexdigest()
                return self._answer(content, {"ETag": f'"{etag}"', "X-Repo-Commit": parts[4]})
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _answer(self, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Keep the tests' output clean."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a hub with the three layouts; the client's cache is a fresh folder."""
    import pyarrow
    import pyarrow.parquet
    from huggingface_hub import constants

    def parquet(*records: dict[str, Any]) -> bytes:
        path = tmp_path / "one.parquet"
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(records)), path)
        return path.read_bytes()

    members = {
        "data/qasper.jsonl": jsonl(record(1), record(2)),
        "data/trec.jsonl": jsonl(record(3)),
    }
    Hub.files = {
        "zip": {
            "LongBench.py": b"raise SystemExit",
            "data.zip": archive(tmp_path / "made.zip", members).read_bytes(),
        },
        "parquet": {
            "qasper/test-00000-of-00002.parquet": parquet(record(1)),
            "qasper/test-00001-of-00002.parquet": parquet(record(2)),
            "trec/test-00000-of-00001.parquet": parquet(record(3, all_classes=["City"])),
            "broken/test/0000.parquet": b"PAR1",
        },
        "neither": {"README.md": b"#"},
    }
    Hub.requests = []
    # The client reads these from the environment when it is imported.
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("layout", ["zip", "parquet"])
def test_the_hub_is_read_in_both_layouts_and_its_commit_recorded(hub: str, layout: str) -> None:
    source = open_source("hub", hub_repo=f"owner/{layout}", endpoint=hub)
    assert source.records("qasper") == [record(1), record(2)]
    assert source.revision == COMMITS[layout]
    assert source.description == f"LongBench from owner/{layout} at {COMMITS[layout][:12]}"
    assert len(source.content_hash(["qasper", "trec"])) == 32
    with pytest.raises(UserError, match=r"lacks narrativeqa\.jsonl"):
        source.records("narrativeqa")


def test_a_commit_in_the_cache_is_read_without_the_hub(hub: str) -> None:
    commit = COMMITS["zip"]
    open_source("hub", hub_repo="owner/zip", revision=commit, endpoint=hub)
    asked = len(Hub.requests)
    assert asked > 0
    again = open_source("hub", hub_repo="owner/zip", revision=commit, endpoint=hub)
    assert again.records("trec") == [record(3)]
    assert len(Hub.requests) == asked


def test_a_bad_record_of_a_parquet_file_names_file_row_and_field(hub: str, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "bad.parquet"
    table = pyarrow.Table.from_pylist([record(1), record(2, answers=[])])
    pyarrow.parquet.write_table(table, path)
    Hub.files["parquet"]["musique/test-00000-of-00001.parquet"] = path.read_bytes()
    source = open_source("hub", hub_repo="owner/parquet", endpoint=hub)
    with pytest.raises(UserError) as error:
        source.records("musique")
    place = "musique/test-00000-of-00001.parquet, row 2"
    assert f"{place}: field 'answers' is empty" in said(error)
    with pytest.raises(UserError, match=r"broken/test/0000\.parquet is not a parquet file"):
        source.records("broken")


def test_a_repository_of_neither_layout_is_an_error(hub: str) -> None:
    with pytest.raises(UserError, match=r"holds neither data\.zip nor"):
        open_source("hub", hub_repo="owner/neither", endpoint=hub)


@pytest.mark.parametrize("repo", ["owner/absent", "not a repository"])
def test_a_repository_that_is_not_there_names_the_ways_out(hub: str, repo: str) -> None:
    with pytest.raises(UserError) as error:
        open_source("hub", hub_repo=repo, endpoint=hub)
    assert said(error).startswith(f"{repo} at main cannot be fetched from the hub (")
    assert said(error).endswith("give data=PATH with the unpacked files, or data=sample")


def test_an_unreachable_hub_names_the_ways_out(hub: str) -> None:
    with pytest.raises(UserError) as error:
        open_source("hub", hub_repo="owner/zip", endpoint="http://127.0.0.1:9")
    assert "give data=PATH with the unpacked files, or data=sample" in said(error)
