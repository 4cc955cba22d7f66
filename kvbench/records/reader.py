"""Reads run folders, which may be anybody's: foreign files and torn lines are skipped."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, get_type_hints

from kvbench.base.errors import UserError
from kvbench.base.jsonl import LONGEST_LINE
from kvbench.records.fields import fits
from kvbench.records.header import SCHEMA, RunHeader, read_header
from kvbench.records.record import Record


@dataclass(frozen=True)
class Shard:
    """One file of a run folder, as read."""

    path: Path
    header: RunHeader
    records: tuple[Record, ...]


def read_shards(out: Path) -> list[Shard]:
    """Read every shard of a run folder, oldest first; foreign files and torn lines are skipped.

    Raises:
        UserError: a shard was written with another schema version, or a file cannot be read.
    """
    found = []
    for path in sorted(out.glob("*.jsonl")):
        lines = _lines(path)
        first = next(lines, None)
        if first is None or first.get("kind") != "header":
            continue
        if first.get("schema") != SCHEMA:
            raise UserError(
                f"{path} has record schema {first.get('schema')}, this kvbench reads {SCHEMA}:"
                " move the folder away or use the kvbench that wrote it"
            )
        header = read_header(path, first)
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
