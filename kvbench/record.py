"""Records: one line per (sample, variant), in JSONL shards that survive any crash.

A run folder holds one shard per writer process. A shard's first line is the run header; every
further line is a `Record`. Lines are appended whole and synced, so that the worst a crash leaves
is a torn last line, which readers skip. Knows nothing of models or tables.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, get_type_hints

import kvbench
from kvbench import provenance
from kvbench.errors import UserError
from kvbench.jsonl import LONGEST_LINE
from kvbench.record_types import check_header, fits

if TYPE_CHECKING:
    from kvbench.plan import Plan

BASELINE = "fullkv"
"""The method, a file stem in conf/method, that every table compares with."""

SCHEMA = 1
"""Version of the line format; readers refuse another."""


@dataclass(frozen=True)
class Record:
    """The result of one variant on one sample."""

    key: str
    """Fingerprint of everything that can change the result; equal keys, equal results."""
    model: str
    """Name of the model."""
    suite: str
    """File stem in conf/task."""
    task: str
    """Task, such as narrativeqa."""
    group: str
    """The task's column group in the papers' tables."""
    sample: str
    """Identifier of the sample inside its task."""
    variant: str
    """Label of the table row: method@budget, with changed fields in brackets."""
    method: str
    """File stem in conf/method."""
    method_config: dict[str, Any]
    """The method's fields."""
    budget: float
    """What may be kept: a share of the native cache, in (0, 1], or tokens per head and layer."""
    budget_unit: str
    """`fraction` or `tokens`."""
    query_aware: bool
    """Whether the question was part of what was compressed."""
    prompt_tokens: int
    """Tokens of the prompt after truncation and template."""
    prefill_tokens: int
    """Tokens of the prompt that the prefill saw and the method compressed."""
    tokens_cut: int
    """Tokens that truncation removed from the prompt."""
    spans: dict[str, list[int]]
    """Name -> tokens [start, end) of the prompt, such as the needle; empty on most tasks."""
    span_kept: dict[str, list[float]]
    """Name -> per layer: share of the span's tokens kept, mean over the layout's heads."""
    prediction: str | None
    """Generated text; null after an error."""
    generated_tokens: int | None
    """Tokens generated, the stop token left out."""
    answers: list[str]
    """References."""
    scored_fields: dict[str, Any]
    """What else scoring reads of the sample, such as all_classes and length (in words)."""
    metric: str | None
    """Name of the main metric, the first of `scores`."""
    score: float | None
    """Value of the main metric, in [0, 1]; null after an error."""
    scores: dict[str, float]
    """Metric name -> value in [0, 1]."""
    kept_ratio: float | None
    """Tokens kept / prefilled tokens, mean over the layout's heads and over layers."""
    ratio_bytes: float | None
    """Bytes of every tensor the cache holds / bytes of the native full cache."""
    ratio_formula15: float | None
    """SpindleKV's Formula 15 with native denominators and the additive r3."""
    ratio_formula15_printed: float | None
    """SpindleKV's Formula 15 exactly as typeset."""
    r1: list[float]
    """Per layer: K and V vectors kept, copies counted / native K and V vectors."""
    r2: list[float]
    """Per layer: distinct vectors stored / vectors kept."""
    cache_bytes: int | None
    """Bytes of the compressed cache at the end of compression."""
    native_bytes: int | None
    """Bytes of the native full cache of the same tokens and dtype."""
    bytes_by_part: dict[str, int]
    """Bytes of each part of the cache; `tail`, what followed compression, is not in cache_bytes."""
    kept_tokens: list[float]
    """Per layer: tokens kept, mean over the layout's heads."""
    facts: dict[str, Any]
    """What the method says of itself: nominal budget searched for, saturated, schedule, ..."""
    decode_width: int | None
    """Rows decoded together, padding copies included."""
    capture_s: float | None
    """Seconds of the one prefill that all variants of the sample share."""
    compress_s: float | None
    """Seconds of compressing, the search for the budget included."""
    decode_s: float | None
    """Seconds of the decode batch that this variant was part of."""
    error: str | None
    """What went wrong, in one line; null: nothing."""
    finished: str
    """Time the record was made, UTC, ISO 8601."""
    prompt_tail: str | None = None
    """Last 400 characters of the prompt as text, special tokens shown; null in older records."""


def now() -> str:
    """UTC time, ISO 8601, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def run_header(
    plan: Plan, expected: Mapping[str, int], data: Mapping[str, Any], device: str | None = None
) -> dict[str, Any]:
    """Describe a run: the first line of each of its shards.

    Args:
        plan: what is run.
        expected: task name -> samples that the run will score.
        data: the data source: `description`, `revision`, and `hashes` (task -> hash of its file)
        device: where the model is, as torch names it.
    """
    return {
        "kind": "header",
        "schema": SCHEMA,
        "kvbench": kvbench.__version__,
        "run": secrets.token_hex(6),
        "started": now(),
        "model": {"name": plan.model.name, **plan.model_identity},
        "suite": plan.suite_choice,
        "data": {"setting": plan.data, **data},
        "protocol": asdict(plan.protocol),
        "variants": [
            {"label": v.label, "method": v.choice, "budget": str(v.budget), "config": v.config}
            for v in plan.variants
        ],
        "tasks": [
            {
                "name": task.name,
                "group": task.group,
                "samples": expected[task.name],
                "max_new_tokens": task.max_new_tokens,
                "one_token_answers": task.one_token_answers,
            }
            for task in plan.tasks
            if task.name in expected
        ],
        "config": plan.config,
        "versions": provenance.versions(),
        "git": provenance.git_state(),
        "machine": provenance.machine(device),
    }


class Writer:
    """Appends records to one new shard of a run folder; creates nothing before the first one."""

    def __init__(self, out: Path, header: Mapping[str, Any]) -> None:
        """Check that the folder can be written to.

        Args:
            out: run folder; need not exist.
            header: as `run_header` made it.

        Raises:
            UserError: `out` is a file, or no file can be made there.
        """
        self.out = out
        self._header = header
        _check_writable(out)

    def append(self, record: Record) -> None:
        """Write one record; it is on disk when this returns.

        Raises:
            UserError: the file system refuses (no space left, read-only, ...).
        """
        self.append_line("record", asdict(record))

    def append_line(self, kind: str, values: Mapping[str, Any]) -> None:
        """Write one line of another kind, which readers of records skip.

        Raises:
            UserError: the file system refuses (no space left, read-only, ...).
        """
        try:
            _append_line(self._shard, {"kind": kind, **values})
        except OSError as error:
            raise _unwritable(self.out, error) from error

    def close(self) -> None:
        """Close the shard, if one was begun."""
        if "_shard" in self.__dict__:
            os.close(self.__dict__.pop("_shard"))

    def __enter__(self) -> Writer:
        """Close at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    @cached_property
    def _shard(self) -> int:
        """File descriptor of a new file that begins with the header."""
        self.out.mkdir(parents=True, exist_ok=True)
        # The process and a random part keep writers on several nodes apart; time gives the order.
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
        name = f"{stamp}-{os.getpid()}-{secrets.token_hex(3)}.jsonl"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        shard = os.open(self.out / name, flags, 0o644)
        try:
            _append_line(shard, self._header)
        except OSError:
            os.close(shard)
            (self.out / name).unlink()
            raise
        return shard


@dataclass(frozen=True)
class Shard:
    """One file of a run folder, as read."""

    path: Path
    header: Mapping[str, Any]
    records: tuple[Record, ...]


def read_shards(out: Path) -> list[Shard]:
    """Read every shard of a run folder, oldest first; foreign files and torn lines are skipped.

    Raises:
        UserError: a shard was written with another schema version, or a file cannot be read.
    """
    found = []
    for path in sorted(out.glob("*.jsonl")):
        lines = _lines(path)
        header = next(lines, None)
        if header is None or header.get("kind") != "header":
            continue
        if header.get("schema") != SCHEMA:
            raise UserError(
                f"{path} has record schema {header.get('schema')}, this kvbench reads {SCHEMA}:"
                " move the folder away or use the kvbench that wrote it"
            )
        check_header(path, header)
        found_here = (_record(line) for line in lines if line.get("kind") == "record")
        records = tuple(record for record in found_here if record is not None)
        found.append(Shard(path, header, records))
    return found


def lines_of_kind(out: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of a kind of every shard of a run folder, oldest shard first."""
    for path in sorted(out.glob("*.jsonl")):
        yield from (line for line in _lines(path) if line.get("kind") == kind)


def distinct(shards: list[Shard]) -> Iterator[tuple[Shard, Record]]:
    """Yield each key once, with its shard: the first success, else the first failure."""
    chosen: dict[str, tuple[Shard, Record]] = {}
    for shard in shards:
        for record in shard.records:
            before = chosen.get(record.key)
            if before is None or (before[1].error is not None and record.error is None):
                chosen[record.key] = (shard, record)
    yield from chosen.values()


def done_keys(out: Path) -> set[str]:
    """Return the keys of all successful records of a run folder; empty if there is none."""
    shards = read_shards(out)
    return {r.key for shard in shards for r in shard.records if r.error is None}


def failed_keys(out: Path) -> set[str]:
    """Return the keys whose records are all failures."""
    shards = read_shards(out)
    return {r.key for shard in shards for r in shard.records if r.error} - done_keys(out)


_HINTS = get_type_hints(Record)
_NAMES = tuple(_HINTS)


def _record(line: Mapping[str, Any]) -> Record | None:
    """The record of a line; None where a field has another type than records have."""
    values: dict[str, Any] = {name: line.get(name) for name in _NAMES}
    for name in ("spans", "span_kept"):  # absent from records of the first days
        values[name] = values[name] or {}
    whole = all(fits(values[name], hint) for name, hint in _HINTS.items())
    return Record(**values) if whole else None


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file; a line that is none (torn by a crash) is skipped.

    So is a line longer than `LONGEST_LINE`, of which no more than that is held.
    """
    try:
        with path.open("rb") as file:
            while line := file.readline(LONGEST_LINE):
                if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                    _skip_rest_of_line(file)
                    continue
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(value, dict):
                    yield value
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def _skip_rest_of_line(file: IO[bytes]) -> None:
    while (part := file.readline(2**20)) and not part.endswith(b"\n"):
        pass


def _append_line(shard: int, value: Mapping[str, Any]) -> None:
    line = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
    # A lone surrogate, which a tokenizer can produce, has no UTF-8 form.
    data = line.encode("utf-8", errors="replace")
    before = os.fstat(shard).st_size
    if os.write(shard, data) != len(data):
        os.ftruncate(shard, before)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(shard)


def _check_writable(out: Path) -> None:
    """Make and remove a file in the nearest existing folder."""
    folder = out.absolute()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise UserError(f"out={out}: {folder} is a file: give another folder with out=PATH")
    probe = folder / f".kvbench-{os.getpid()}-{secrets.token_hex(3)}"
    try:
        probe.write_bytes(b"kvbench")
        probe.unlink()
    except OSError as error:
        probe.unlink(missing_ok=True)
        raise _unwritable(out, error) from error


def _unwritable(out: Path, error: OSError) -> UserError:
    reason = error.strerror or str(error)
    return UserError(f"cannot write records to {out} ({reason}): give another folder with out=PATH")
