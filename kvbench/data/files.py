"""Where LongBench records come from: the authors' hub repository, a folder, a zip, or the sample.

Every record is read as it stands and checked before anything runs. Knows nothing of tasks beyond
their file names.
"""

from __future__ import annotations

import hashlib
import lzma
import re
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from io import BufferedReader, RawIOBase
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from kvbench.base import jsonl
from kvbench.base.errors import UserError
from kvbench.base.suggest import nearest

HUB_REPO = "zai-org/LongBench"
"""The authors' dataset repository. Source: THUDM/LongBench README, which links it under its old
name THUDM/LongBench; the hub forwards that name."""

HUB_REVISION = "5e628be450b7e67fb7ae6e201bd6d8f7056f7672"
"""The commit of HUB_REPO read unless another is asked for: a loading script and `data.zip`."""

MAX_FILE_BYTES = 2**30
"""Bytes a zip member may unpack to; LongBench's largest is about 50 MB."""

SAMPLES = Path(__file__).with_name("samples")
"""The small suite that ships in the package, in LongBench's record format."""

RecordRule = Callable[[dict[str, Any], str], None]
"""(record, its place) -> raises UserError where the record is not fit for its task."""

_BROKEN_MEMBER = (
    OSError,
    RuntimeError,  # encrypted, or a method that is not supported
    EOFError,
    lzma.LZMAError,
    zipfile.BadZipFile,
    zlib.error,
)

_COMMIT = re.compile(r"[0-9a-f]{40}")


class Source(ABC):
    """Files that samples are made of, and what identifies them."""

    description: str
    """One line for tables."""
    revision: str | None = None
    """The commit of a hub repository, resolved; None for files."""

    @abstractmethod
    def _content(self, task: str) -> Iterator[bytes]:
        """Yield the content of the task's files, of each as `sized_blocks` does."""

    def content_hash(self, tasks: Iterable[str]) -> str:
        """Blake2b over the bytes of the tasks' files, 32 hex digits; the order does not matter."""
        digest = hashlib.blake2b(digest_size=16)
        for task in sorted(set(tasks)):
            for block in self._content(task):
                digest.update(block)
        return digest.hexdigest()


def sized_blocks(task: str, size: int, file: IO[bytes]) -> Iterator[bytes]:
    """Yield a line with a task and its file's size in bytes, then the file in blocks."""
    yield f"{task} {size}\n".encode()
    while block := file.read(2**20):
        yield block


class DataSource(Source):
    """The records of LongBench tasks, `<task>.jsonl` each or a converted form of it."""

    @abstractmethod
    def _rows(self, task: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the task's records, each with its place."""

    def records(self, task: str, rule: RecordRule | None = None) -> list[dict[str, Any]]:
        """Return all records of a task in file order, as read and checked.

        Args:
            task: the file's name without `.jsonl`, such as `qasper` or `qasper_e`.
            rule: a further check of each record.

        Raises:
            UserError: no such file, or a bad record; one line with file, line and field.
        """
        rows = self._rows(task)
        places: dict[str, str] = {}
        for place, record in rows:
            check_record(record, place)
            if rule is not None:
                rule(record, place)
            first = places.setdefault(record["_id"], place)
            if first is not place:
                name = record["_id"]
                raise UserError(
                    f"{place}: field '_id' {name!r} stands at {first} too: make it unique"
                )
        if not rows:
            raise UserError(f"{task} in {self.description} holds no records: fill the file")
        return [record for _, record in rows]


def check_record(record: dict[str, Any], place: str) -> None:
    """Raise UserError where a record lacks a field of LongBench's format or has it wrong."""
    for key in ("input", "context", "dataset", "language", "_id"):
        jsonl.text_field(record, key, place)
    jsonl.answers_field(record, place)
    jsonl.length_field(record, place)
    jsonl.classes_field(record, place, required=False)


class _JsonlSource(DataSource):
    """Files `<task>.jsonl`, by task."""

    @abstractmethod
    def _opened(self, task: str) -> AbstractContextManager[tuple[str, int, IO[bytes]]]:
        """Open a task's file: its name for errors, its size in bytes, its content."""

    def _rows(self, task: str) -> list[tuple[str, dict[str, Any]]]:
        with self._opened(task) as (name, _, file):
            return list(jsonl.parse_objects(file, name))

    def _content(self, task: str) -> Iterator[bytes]:
        with self._opened(task) as (_, size, file):
            yield from sized_blocks(task, size, file)


class FolderSource(_JsonlSource):
    """A folder of `<task>.jsonl`, or the unpacked `data.zip` with them in `data/`."""

    def __init__(self, folder: Path, description: str) -> None:
        """Read from `folder`."""
        inner = folder / "data"
        self.folder = inner if inner.is_dir() and not any(folder.glob("*.jsonl")) else folder
        self.description = description

    @contextmanager
    def _opened(self, task: str) -> Iterator[tuple[str, int, IO[bytes]]]:
        path = self.folder / f"{task}.jsonl"
        try:
            with path.open("rb") as file:
                yield str(path), path.stat().st_size, file
        except FileNotFoundError as error:
            present = sorted(p.stem for p in self.folder.glob("*.jsonl"))
            raise _missing(task, str(self.folder), present) from error
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error


class ZipSource(_JsonlSource):
    """A zip of `<task>.jsonl` in any one folder, such as LongBench's own `data.zip`."""

    def __init__(self, path: Path, description: str, revision: str | None = None) -> None:
        """Read from the zip file at `path`, in place: nothing is unpacked to disk."""
        self.path = path
        self.description = description
        self.revision = revision
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in _zip_members(path):
            inside = PurePosixPath(member.filename.replace("\\", "/"))
            if inside.is_absolute() or ".." in inside.parts or ":" in "".join(inside.parts[:1]):
                raise UserError(f"{path}: member {member.filename!r} leaves the archive: refused")
            if inside.suffix != ".jsonl" or inside.name.startswith("."):
                continue
            if member.file_size > MAX_FILE_BYTES:
                size = f"{member.file_size} bytes, more than {MAX_FILE_BYTES}"
                raise UserError(f"{path}: member {member.filename!r} unpacks to {size}: refused")
            other = self._members.setdefault(inside.stem, member)
            if other is not member:
                both = f"{other.filename!r} and {member.filename!r}"
                raise UserError(f"{path} holds {both}: keep one file for each task")

    @contextmanager
    def _opened(self, task: str) -> Iterator[tuple[str, int, IO[bytes]]]:
        member = self._members.get(task)
        if member is None:
            raise _missing(task, str(self.path), sorted(self._members))
        name = f"{self.path}, {member.filename}"
        try:
            with zipfile.ZipFile(self.path) as archive, archive.open(member) as file:
                yield name, member.file_size, BufferedReader(cast(RawIOBase, file), 2**20)
        except _BROKEN_MEMBER as error:
            raise UserError(f"{name} cannot be unpacked: {_first_line(error)}") from error


class ParquetSource(DataSource):
    """A hub repository converted to parquet: files `<task>/test-*.parquet` or the like."""

    def __init__(
        self,
        files: Mapping[str, list[str]],
        fetch: Callable[[str], Path],
        description: str,
        revision: str,
    ) -> None:
        """Read `files`, task -> names inside the repository, each brought here by `fetch`."""
        self.files = files
        self.fetch = fetch
        self.description = description
        self.revision = revision

    def _paths(self, task: str) -> list[tuple[str, Path]]:
        if task not in self.files:
            raise _missing(task, self.description, sorted(self.files))
        return [(name, self.fetch(name)) for name in self.files[task]]

    def _rows(self, task: str) -> list[tuple[str, dict[str, Any]]]:
        import pyarrow  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]

        rows: list[tuple[str, dict[str, Any]]] = []
        for name, path in self._paths(task):
            try:
                records = pyarrow.parquet.ParquetFile(path).read().to_pylist()
            except pyarrow.ArrowException as error:
                raise UserError(f"{name} is not a parquet file: {_first_line(error)}") from error
            rows += [(f"{name}, row {n}", record) for n, record in enumerate(records, start=1)]
        return rows

    def _content(self, task: str) -> Iterator[bytes]:
        for _, path in self._paths(task):
            with path.open("rb") as file:
                yield from sized_blocks(task, path.stat().st_size, file)


def is_commit(revision: str) -> bool:
    """Whether a revision is a full commit id, which never moves."""
    return _COMMIT.fullmatch(revision) is not None


def _zip_members(path: Path) -> list[zipfile.ZipInfo]:
    """The files of an archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [member for member in archive.infolist() if not member.is_dir()]
    except (OSError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} is a broken zip: {_first_line(error)}") from error


def _missing(task: str, where: str, present: list[str]) -> UserError:
    """The error for a task whose file is not there."""
    if not present:
        return UserError(f"{where} holds no <task>.jsonl at all: give another data=")
    near = nearest(task, present)
    return UserError(f"{where} lacks {task}.jsonl; the nearest there is {near}.jsonl")


def _first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
