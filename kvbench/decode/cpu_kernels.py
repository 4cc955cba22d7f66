"""Attention of one token over what stores hold, on a CPU: one flat launch per layer and step.

Every head of every lane of every row of a batch is one job; the jobs of a layer run in one call of
compiled code, whatever the methods, budgets and lengths are. A head is computed by one thread and
reads nothing of the others, so that a row's result depends neither on its neighbors in the batch
nor on the number of threads. `kvbench.decode.reading` says what is computed.

numba compiles the kernels (`kvbench.decode.numba_kernels`) when the first launch is built, or loads
them from its cache.

Letters: V rows of a batch, Q query heads, G KV heads, g = Q / G, h adjacent heads of a lane,
c query heads that read each of them, n rows held, D head dim.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import cast
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kvbench.cache.segments import CodebookRows, Packed, PlainRows, QuantizedRows, Segment, Written
from kvbench.cache.store import Lane
from kvbench.decode.reading import Reading
from kvbench.model.attention import AttentionRule
from kvbench.model.rotary import Rotary

NAME = "numba"

MOST_READERS = 16
"""Query heads of a KV head that a kernel is compiled for at most."""

_WORTH_A_THREAD = 1 << 20
"""Multiplications that take longer than waking a thread, about 0.1 ms."""

# Where a job's segments, rows, and row, KV head and tail stand.
_SEGMENTS, _ROWS, _TAILS = slice(3, 5), 5, (0, 2, 6, 7, 8)

_Ints = npt.NDArray[np.int64]
_scratch = threading.local()


def available() -> bool:
    """Whether numba can be imported, which is not tried yet."""
    return find_spec("numba") is not None


def reads(lane: Lane, group: int) -> bool:
    """Whether the kernels serve a lane: float32 on the CPU, in storage they know.

    Args:
        lane: the segments.
        group: g, query heads of a KV head.
    """
    rotations = {id(r): r for r in map(_rotary, lane) if r is not None}.values()
    coded = sum(isinstance(segment, QuantizedRows) for segment in lane)
    return (
        group <= MOST_READERS
        and len(rotations) <= 1
        and coded <= 1
        and all(_reads_segment(segment) for segment in lane)
    )


def _rotary(segment: Segment) -> Rotary | None:
    """What rotates a segment's keys as they are read."""
    return segment.rotary if isinstance(segment, PlainRows | CodebookRows) else None


def _reads_segment(segment: Segment) -> bool:
    """Whether the kernels serve one segment."""
    members = segment.members
    if members is not None and not (members.dtype == torch.uint8 and _along(members)):
        return False
    if isinstance(segment, PlainRows):
        dim = segment.k.shape[-1]
        held = _floats(segment.k, segment.v) and segment.at.dtype == torch.int32
        held = held and _along(segment.at)
    elif isinstance(segment, CodebookRows):
        dim = segment.keys.entries.shape[-1]
        held = all(_reads_book(book) for book in (segment.keys, segment.values))
        held = held and segment.at.dtype in (torch.uint16, torch.int32) and _along(segment.at)
    elif isinstance(segment, QuantizedRows):
        dim = segment.shape[-1]
        held = all(_reads_packed(packed) for packed in (segment.keys, segment.values))
        # A head's codes begin with a byte, and so do a row's.
        held = held and segment.keys.bits == segment.values.bits and segment.shape[0] > 0
        held = held and segment.group * segment.keys.bits % 8 == 0
        held = held and segment.values.size * segment.values.bits % 8 == 0
    else:
        return False
    rotary = _rotary(segment)
    return held and (rotary is None or _reads_table(rotary, dim))


def _reads_table(rotary: Rotary, dim: int) -> bool:
    """Whether the kernels serve a rotation."""
    cos, sin = rotary.table.cos, rotary.table.sin
    return _floats(cos, sin) and cos.stride() == sin.stride() and rotary.turns_halves(dim)


def _floats(*tensors: Tensor) -> bool:
    """Whether all are float32 on the CPU, with channels side by side."""
    return all(t.dtype == torch.float32 and t.device.type == "cpu" and _along(t) for t in tensors)


def _along(x: Tensor) -> bool:
    """Whether the last dimension lies on the CPU without gaps."""
    return x.device.type == "cpu" and (x.stride(-1) == 1 or x.shape[-1] <= 1)


def _reads_book(book: Written) -> bool:
    """Whether the kernels serve one codebook."""
    return (
        _floats(book.entries)
        and (book.norms is None or _floats(book.norms))
        and book.refs.dtype in (torch.uint16, torch.int32)
        and _along(book.refs)
    )


def _reads_packed(packed: Packed) -> bool:
    """Whether the kernels serve codes and their steps."""
    return _floats(packed.steps, packed.least) and _along(packed.codes) and packed.bits in (2, 4, 8)


_Numbers = tuple[int, ...]
_Column = tuple[_Numbers, _Numbers]
"""Numbers of a head as a table lists them, and what each further head adds to them."""


@dataclass(frozen=True)
class _Listing:
    """What the tables list of one reading, and the tensors that lie at the addresses."""

    lane: Lane
    buffer: Tensor
    """The tail's, which its reading may replace."""
    angles: tuple[Tensor, Tensor] | None
    """cos and sin, which their table replaces when it grows."""
    kernel: tuple[int, int, int, int, int]
    """What its kernel is made for: D, c, channels turned on read, bits, tokens of a key group."""
    jobs: _Ints
    """[h, fields], as if its segments were the first."""
    segments: _Ints
    """[h * segments, fields]."""
    scratch: int
    """Floats."""

    @classmethod
    def of(cls, reading: Reading) -> _Listing:
        """Look up where everything lies."""
        from kvbench.decode import numba_kernels as kernels

        buffer, readers = reading.tail.buffer, reading.readers
        of_values, of_head, of_row, _ = buffer.stride()
        most, dim = buffer.shape[2:]
        turned = bits = group = 0
        angles = None
        turning = (0, 0, 0)
        for segment in reading.lane:
            rotary = _rotary(segment)
            if rotary is not None and angles is None:
                angles = cos, sin = rotary.table.cos, rotary.table.sin
                turned, turning = cos.shape[1], (cos.data_ptr(), sin.data_ptr(), cos.stride(0))
            if isinstance(segment, QuantizedRows):
                bits, group = segment.keys.bits, segment.group
        columns = [_column(segment, turning) for segment in reading.lane]
        rows = sum(first[1] for first, _ in columns)
        entries = max(first[-1] for first, _ in columns)
        scratch = readers * (rows + most) + entries * kernels.padded_readers(readers)
        scratch += kernels.fixed_scratch(dim, readers, group)
        jobs: list[_Numbers] = []
        segments: list[_Numbers] = []
        tail = buffer.data_ptr()
        for head in range(_heads(reading.lane[0])):
            query = reading.first_query + head * readers
            kv_head = query // reading.group
            held = (len(segments), len(segments) + len(columns), rows)
            keys = tail + 4 * kv_head * of_head
            values = keys + 4 * of_values
            jobs.append((reading.row, query, kv_head, *held, keys, values, of_row))
            for first, step in columns:
                further = (x + head * y for x, y in zip(first, step, strict=True))
                segments.append(tuple(further) if head else first)
        kernel = (dim, readers, turned, bits, group)
        tables = [np.array(table, np.int64) for table in (jobs, segments)]
        return cls(reading.lane, buffer, angles, kernel, tables[0], tables[1], scratch)


_known: WeakKeyDictionary[Reading, _Listing] = WeakKeyDictionary()
"""Of readings that somebody still holds."""


class FlatLaunch:
    """The jobs of one layer, to be run once for each token: who reads what, and where it lies.

    It holds addresses: build it anew when a row joins, leaves or absorbs its tail, and let it
    follow tails whose buffers move. What it reads it keeps alive.
    """

    def __init__(self, readings: Sequence[Reading]) -> None:
        """List the jobs of readings whose lanes the kernels read (`reads`).

        Args:
            readings: of one layer, every row's lanes; a row without any is idle. What was found out
                of the same objects before is taken over.
        """
        from kvbench.decode import numba_kernels as kernels

        self._append = kernels.append
        self._readings = readings
        self._rows = len({reading.row for reading in readings})
        self.follow_tails()

    def follow_tails(self) -> None:
        """List the jobs, anew for tails whose buffers have moved."""
        from kvbench.decode import numba_kernels as kernels

        readings = self._readings
        by_kernel: dict[tuple[int, int, int, int, int], list[_Listing]] = {}
        for reading in readings:
            listing = _known.get(reading)
            if listing is None or listing.buffer is not reading.tail.buffer:
                listing = _known[reading] = _Listing.of(reading)
            by_kernel.setdefault(listing.kernel, []).append(listing)
        # Held, so that what lies at the addresses stays there.
        self._listings = listings = [x for some in by_kernel.values() for x in some]
        self._jobs = np.empty((0, len(kernels.JOB_FIELDS)), np.int64)
        self._segments = np.empty((0, len(kernels.SEGMENT_FIELDS)), np.int64)
        if listings:
            self._jobs = np.concatenate([listing.jobs for listing in listings])
            self._segments = np.concatenate([listing.segments for listing in listings])
            lengths = [len(listing.segments) for listing in listings]
            heads = [len(listing.jobs) for listing in listings]
            earlier = np.repeat(np.cumsum([0, *lengths[:-1]]), heads)
            self._jobs[:, _SEGMENTS] += earlier[:, None]
        owners = self._jobs[:, _TAILS]
        # Lanes of several query heads share a tail, and it is written to once.
        _, firsts = np.unique(owners[:, 2], return_index=True)
        self._tails = np.ascontiguousarray(owners[firsts])
        self._dim = listings[0].kernel[0] if listings else 0
        self._scratch = max((listing.scratch for listing in listings), default=0)
        self._kernels = []
        costs: list[int] = []
        for key, some in by_kernel.items():
            jobs = sum(len(listing.jobs) for listing in some)
            self._kernels.append((kernels.attention(*key), len(costs), len(costs) + jobs))
            costs += [key[0] * (key[1] + 1)] * jobs
        self._cost_per_row = np.array(costs, np.int64)
        self._cost = int((self._cost_per_row * self._jobs[:, _ROWS]).sum())
        self._cost_per_token = sum(costs)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        at: Tensor | _Ints,
        counts: Tensor | _Ints,
        rule: AttentionRule,
        out: Tensor,
    ) -> None:
        """Write the new rows behind the tails, and the attention over everything into `out`.

        Nothing is counted up: a step that failed may be repeated.

        Args:
            q: [V, Q, 1, D] float32 queries after RoPE.
            k: [V, G, 1, D] keys of the same tokens after RoPE.
            v: [V, G, 1, D] values.
            at: [V] int64 positions of the tokens; any number for idle rows.
            counts: [V] int64 tokens that each row's tail held before these.
            rule: of the layer.
            out: [V, Q, 1, D] contiguous; idle rows become 0.
        """
        q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
        if self._rows < len(q):
            out.zero_()
        where = at.numpy() if isinstance(at, Tensor) else at
        counts = counts.numpy() if isinstance(counts, Tensor) else counts
        self._append(
            self._tails,
            self._dim,
            *(k.data_ptr(), k.stride(0), k.stride(1)),
            *(v.data_ptr(), v.stride(0), v.stride(1)),
            counts,
        )
        inputs = (
            *(q.data_ptr(), q.stride(0), q.stride(1), out.data_ptr(), out.stride(0)),
            *(where, counts, rule.scaling, rule.softcap or 0.0, rule.sliding_window or 0),
        )
        shares = self._shares(counts)
        futures = [_pool().submit(self._run, *share, inputs) for share in shares[1:]]
        self._run(*shares[0], inputs)
        for future in futures:
            future.result()

    def _run(self, first: int, end: int, inputs: tuple[object, ...]) -> None:
        """Run the jobs from one to another with this thread's scratch."""
        work = _scratch_of(self._scratch)
        for kernel, start, stop in self._kernels:
            if start < end and stop > first:
                some = max(start, first), min(stop, end)
                kernel(self._jobs, self._segments, *some, *inputs, work)

    def _shares(self, counts: _Ints) -> list[tuple[int, int]]:
        """First and end of the jobs of each thread: about equal, and worth a thread."""
        threads = torch.get_num_threads()
        if threads > 1:
            cost = self._cost + self._cost_per_token * (int(counts.max()) + 1)
            threads = min(threads, cost // _WORTH_A_THREAD)
        if threads <= 1:
            return [(0, len(self._jobs))]
        rows = self._jobs[:, _ROWS] + counts[self._jobs[:, 0]] + 1
        ends = (self._cost_per_row * rows).cumsum()
        cuts = np.searchsorted(ends, ends[-1] * np.arange(1, threads) / threads) + 1
        return list(pairwise([0, *cuts.tolist(), len(ends)]))


def _heads(segment: Segment) -> int:
    """H."""
    if isinstance(segment, PlainRows):
        return segment.k.shape[0]
    return segment.shape[0] if isinstance(segment, QuantizedRows) else 1


def _column(segment: Segment, turning: tuple[int, int, int]) -> _Column:
    """A segment as the table lists it; `turning`: where its lane's cos and sin lie."""
    at: _Numbers = (0, 0)
    of_head = 0
    members = segment.members
    if isinstance(segment, PlainRows):
        kind, rows = 0, segment.k.shape[1]
        at, of_head = (segment.at.data_ptr(), 4), 4 * segment.at.stride(0)
        keys, values = _of_rows(segment.k), _of_rows(segment.v)
    elif isinstance(segment, CodebookRows):
        kind, rows = 1, len(segment.at)
        at = (segment.at.data_ptr(), segment.at.element_size())
        keys, values = _of_book(segment.keys), _of_book(segment.values)
    else:
        assert isinstance(segment, QuantizedRows)
        kind, (_, rows, dim) = 2, segment.shape
        keys, values = (_of_packed(p, rows * dim) for p in (segment.keys, segment.values))
    angles = (0, 0, 0) if _rotary(segment) is None else turning
    bits, of_bits = (0, 0) if members is None else (members.data_ptr(), members.stride(0))
    first = (kind, rows, *at, bits, *angles, *keys[0], *values[0])
    return first, (0, 0, of_head, 0, of_bits, 0, 0, 0, *keys[1], *values[1])


_NONE = (0,) * 7


def _of_rows(rows: Tensor) -> _Column:
    """Rows [h, n, D] as a table lists keys or values."""
    return (rows.data_ptr(), rows.stride(1), 0, 0, 0, 0, 0), (4 * rows.stride(0), *_NONE[1:])


def _of_book(book: Written) -> _Column:
    """The vectors written with a book."""
    refs, norms = book.refs, 0 if book.norms is None else book.norms.data_ptr()
    entries = (book.entries.data_ptr(), book.entries.stride(0))
    first = (*entries, refs.data_ptr(), refs.element_size(), norms, 0, len(book.entries))
    return first, _NONE


def _of_packed(packed: Packed, numbers: int) -> _Column:
    """Codes, `numbers` of them for each head."""
    steps, least = packed.steps.data_ptr(), packed.least.data_ptr()
    first = (packed.codes.data_ptr(), 0, 0, 0, steps, least, packed.size)
    scales = 4 * numbers // packed.size
    return first, (numbers * packed.bits // 8, 0, 0, 0, scales, scales, 0)


_starting = threading.Lock()
_workers: list[ThreadPoolExecutor] = []


def _pool() -> ThreadPoolExecutor:
    """The threads that all launches share."""
    with _starting:
        if not _workers:
            _workers.append(ThreadPoolExecutor(os.cpu_count(), "attention"))
        return _workers[0]


def _scratch_of(floats: int) -> int:
    """Address of at least so many floats that no other thread uses."""
    held = getattr(_scratch, "held", None)
    if held is None or len(held) < floats:
        _scratch.held = held = np.empty(floats, np.float32)
        _scratch.address = held.ctypes.data
    return cast(int, _scratch.address)
