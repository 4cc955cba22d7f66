"""Appends records to a run folder, so that they survive any crash."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from kvbench.base.errors import UserError
from kvbench.records.header import RunHeader
from kvbench.records.record import Record


class Writer:
    """Appends records to one new shard of a run folder; creates nothing before the first one."""

    def __init__(self, out: Path, header: RunHeader) -> None:
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

    def others(self) -> list[int]:
        """Return the processes of this machine that are writing to the folder now, ours left out.

        Each holds a lock on its shard, which ends with the process however that ends.
        """
        mine = self.__dict__.get("_path")
        found = set()
        for path in self.out.glob("*.jsonl"):
            process = path.stem.split("-")[2:3]
            if path != mine and process and process[0].isdecimal() and _is_locked(path):
                found.add(int(process[0]))
        return sorted(found)

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
        self._path = self.out / name
        shard = os.open(self._path, flags, 0o644)
        try:
            with suppress(OSError):  # a file system without locks: nobody is told
                fcntl.flock(shard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _append_line(shard, self._header.line())
        except OSError:
            os.close(shard)
            (self.out / name).unlink()
            raise
        return shard


def _is_locked(path: Path) -> bool:
    """Whether another process writes a shard."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


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
        with suppress(OSError):  # a file system that is read-only refuses this too
            probe.unlink(missing_ok=True)
        raise _unwritable(out, error) from error


def _unwritable(out: Path, error: OSError) -> UserError:
    reason = error.strerror or str(error)
    return UserError(f"cannot write records to {out} ({reason}): give another folder with out=PATH")
