"""Attention of one new token per row over what all rows of a batch hold of a layer, in Triton.

Three launches a layer, whatever the rows, heads and stores: the new keys and values are appended
to the tails; every sequence (one head of a row's store, and the tail behind it) is read in pieces,
each by a program of its own; the pieces are merged by their log-sum-exp. A piece is as long
whatever else is in the batch, so a row's result does not depend on its neighbors. Where a piece
lies is said by tables of addresses on the device, made when a launch is built; a step reads
nothing that the host would have to wait for or send.

Letters: V rows, Q query heads, G KV heads, h adjacent heads of a lane, c query heads that read a
head, n rows held, D head dim.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from kvbench.cache.segments import CodebookRows, PlainRows, QuantizedRows, Segment, Written
from kvbench.cache.store import Lane
from kvbench.decode.reading import Reading
from kvbench.model.attention import AttentionRule
from kvbench.model.rotary import Rotary

NAME = "triton"

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def _has_triton() -> bool:
    """Whether Triton is installed, in a release that compiles the kernels: 3.2 does not."""
    try:
        release = version("triton")
    except PackageNotFoundError:
        return False
    oldest_tried = (3, 4)
    return find_spec("triton") is not None and (
        tuple(int(part) for part in release.split(".")[:2]) >= oldest_tried
    )


_DEFINED = (_INTERPRETED or torch.version.cuda is not None) and _has_triton()
"""Whether the kernels are defined below: never without a use, since Triton is imported for it."""

_PIECE = 256
"""Rows that one program reads at most: many programs for long rows, few sums to merge."""
_MOST_READERS = 31
"""Query heads that may read one head: their bits lie in an int32."""
_ROWS, _TAIL, _BOOKS, _CODES = range(4)
"""Kinds of segments: as they are; the tail; through books or rotated on read; quantized."""

_append: Any
_read: Any
_merge: Any


class _SegmentRow(NamedTuple):
    """One head of a segment as the kernel reads it: addresses in bytes, 0 where there is nothing.

    `refs` and `norms` are those of books; of quantized rows, `refs` are steps and `norms` least
    values. A size is that of one number in bytes, 0 where there is none. A tail's addresses stand
    in a table of their own, since its buffer moves; its `keys` say which KV head is read.
    """

    kind: int
    row: int
    query: int
    """First query head that reads it."""
    readers: int
    rows: int
    keys: int
    values: int
    at: int = 0
    at_size: int = 0
    members: int = 0
    member_size: int = 0
    key_refs: int = 0
    key_norms: int = 0
    key_size: int = 0
    """Of a reference; bits of a code."""
    value_refs: int = 0
    value_norms: int = 0
    value_size: int = 0
    cos: int = 0
    sin: int = 0
    key_group: int = 0
    """Tokens of a group of quantized keys."""
    value_group: int = 0
    """Channels of a group of quantized values."""
    unused: int = 0
    """Rows of every table begin at multiples of 16 bytes: Triton compiles for that."""


def available() -> bool:
    """Whether these kernels can run: Triton, and a CUDA device or Triton's interpreter."""
    return _DEFINED and (_INTERPRETED or torch.cuda.is_available())


def reads(lane: Lane, group: int) -> bool:
    """Whether the kernels serve a lane: numbers of one type, in storage they know.

    Args:
        lane: the segments.
        group: g, query heads of a KV head.
    """
    numbers = {_form(segment) for segment in lane}
    if len(numbers) > 1 or None in numbers or group > _MOST_READERS:
        return False
    return all(_readable(segment) for segment in lane)


def sent(made: Tensor, device: torch.device) -> Tensor:
    """What the host made, on a device; a GPU copies it when its turn comes, nobody waits."""
    return made if device.type == "cpu" else made.pin_memory().to(device, non_blocking=True)


class FlatLaunch:
    """How one layer of all rows is read, until a row joins, leaves or absorbs."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        """Say where everything lies.

        Args:
            readings: of one layer, at least one: every lane of each row that is read, each of which
                `reads` accepts.
        """
        segments: list[_SegmentRow] = []
        pieces: list[tuple[int, int, int, int]] = []
        (form,) = {_form(r.lane[0]) for r in readings}
        assert form is not None
        self._dim, self._dtype = form
        width = 1 + max(r.row for r in readings)
        queries = max(r.first_query + _extent(r.lane[0])[0] * r.readers for r in readings)
        heads = np.zeros((width, queries, 4), np.int64)
        slots = 0
        for reading in readings:
            c = reading.readers
            of_segments = [_rows_of(segment, reading) for segment in reading.lane]
            of_segments.append(_tail_rows(reading))
            for head in range(_extent(reading.lane[0])[0]):
                first, slot = reading.first_query + head * c, slots
                for segment in (rows[head] for rows in of_segments if rows):
                    for start in range(0, segment.rows, _PIECE):
                        pieces.append((len(segments), start, slots, 0))
                        slots += c
                    segments.append(segment)
                read = (slots - slot) // c
                heads[reading.row, first : first + c, :3] = [(slot + i, read, c) for i in range(c)]
        parts = [np.array(x, np.int64) for x in (segments, pieces)] + [heads]
        self._device = readings[0].tail.buffer.device
        flat = sent(torch.from_numpy(np.concatenate([p.ravel() for p in parts])), self._device)
        self._segments, self._pieces, self._heads = (
            table.view(-1, part.shape[-1])
            for table, part in zip(torch.split(flat, [p.size for p in parts]), parts, strict=True)
        )
        self._queries = queries
        self._most_readers = max(r.readers for r in readings)
        kinds = {segment.kind for segment in segments}
        self._has_books, self._has_codes = _BOOKS in kinds, _CODES in kinds
        tables = [r.table for reading in readings for r in map(_rotary, reading.lane) if r]
        turned = {table.cos.shape[1] for table in tables}
        assert len(turned) <= 1, "a layer turns all its keys alike"
        self._turned = max(turned, default=0)
        # What the tables point to. A rotary table that grows lies elsewhere from then on.
        self._held = (
            [reading.lane for reading in readings],
            [(table.cos, table.sin) for table in tables],
        )
        self._readings = {reading.row: reading for reading in readings}
        self._width = width
        self.follow_tails()
        # Slots of sums, then their largest logits, then their total weights.
        self._slots = -(-slots // 16) * 16
        self._scratch = _scratch(self._slots * (self._dim + 2), self._device)

    def follow_tails(self) -> None:
        """Say where the tails' buffers lie now that some have moved."""
        tails = np.zeros((self._width, 4), np.int64)
        self._buffers = [reading.tail.buffer for reading in self._readings.values()]
        for row, buffer in zip(self._readings, self._buffers, strict=True):
            assert buffer.is_contiguous()
            if buffer.numel():
                tails[row, :3] = _at(buffer[0]), _at(buffer[1]), buffer.shape[2]
        self._tails = sent(torch.from_numpy(tails), self._device)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        at: Tensor,
        counts: Tensor,
        rule: AttentionRule,
        out: Tensor,
    ) -> None:
        """Append one token to each tail and attend over the lanes and tails.

        Args:
            q: [V, Q, 1, D] queries.
            k: [V, G, 1, D] keys of the tokens, which are written into the tails.
            v: [V, G, 1, D].
            at: [V] int64 positions of the tokens; of rows that are not fed, any will do.
            counts: [V] int64 tokens that each tail held before these, on the device.
            rule: of the layer.
            out: [V, Q, 1, D], overwritten; zeros for rows without a reading.
        """
        width, queries, _, dim = q.shape
        kv_heads = k.shape[1]
        assert queries == self._queries and width * queries >= len(self._heads)
        assert dim == self._dim and q.dtype == k.dtype == v.dtype == out.dtype == self._dtype
        assert (
            at.dtype == counts.dtype == torch.int64
            and at.is_contiguous()
            and counts.is_contiguous()
        )
        q, k, v = (x if x.stride(3) == 1 else x.contiguous() for x in (q, k, v))
        block_dim = _power_of_two(dim)
        vector_bytes = block_dim * q.element_size()
        readers = max(16, _power_of_two(self._most_readers))  # as many as a tensor core takes
        most = self._scratch[self._slots * dim :]
        total = most[self._slots :]
        windowed, capped = rule.sliding_window is not None, rule.softcap is not None
        with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]
            _append[(len(self._tails) * kv_heads,)](
                *(k, v, k.stride(0), k.stride(1), v.stride(0), v.stride(1)),
                *(counts, self._tails, kv_heads),
                DIM=dim,
                BLOCK_DIM=block_dim,
            )
            _read[(len(self._pieces),)](
                *(q, q.stride(0), q.stride(1), at, counts, self._pieces, self._segments),
                self._tails,
                *(self._scratch, most, total),
                *(rule.scaling, rule.softcap or 0.0, rule.sliding_window or 0),
                DIM=dim,
                BLOCK_DIM=block_dim,
                READERS=readers,
                PIECE=_PIECE,
                BLOCK=_block(vector_bytes),
                HALF=self._turned // 2,
                BLOCK_HALF=max(16, _power_of_two(self._turned // 2)),
                REST=dim - self._turned,
                BLOCK_REST=max(16, _power_of_two(dim - self._turned)),
                WINDOWED=windowed,
                CAPPED=capped,
                HAS_BOOKS=self._has_books,
                HAS_CODES=self._has_codes,
                INTERPRETED=_INTERPRETED,
                num_warps=8 if vector_bytes >= 1024 else 4,
                num_stages=2,
            )
            _merge[(width * queries,)](
                *(self._scratch, most, total, self._heads, len(self._heads)),
                *(out, out.stride(0), out.stride(1), queries),
                DIM=dim,
                BLOCK_DIM=block_dim,
            )


def _at(tensor: Tensor, offset: int = 0) -> int:
    """Address of an element."""
    return tensor.data_ptr() + offset * tensor.element_size()


def _rows_of(segment: Segment, reading: Reading) -> list[_SegmentRow]:
    """The heads of a segment; none where it has no rows."""
    heads, rows = _extent(segment)
    if rows == 0:
        return []
    rotary = _rotary(segment)
    table = None if rotary is None else rotary.table
    of_heads = []
    for head in range(heads):
        fields: dict[str, int] = {}
        if segment.members is not None:
            members = segment.members
            fields["members"] = _at(members, head * members.stride(0))
            fields["member_size"] = members.element_size()
        if table is not None:
            fields |= {"cos": _at(table.cos), "sin": _at(table.sin)}
        if isinstance(segment, PlainRows):
            fields |= _plain_fields(segment, head)
        elif isinstance(segment, CodebookRows):
            fields |= _book_fields(segment)
        else:
            assert isinstance(segment, QuantizedRows)
            fields |= _code_fields(segment, head)
        query = reading.first_query + head * reading.readers
        of_heads.append(
            _SegmentRow(row=reading.row, query=query, readers=reading.readers, rows=rows, **fields)
        )
    return of_heads


def _plain_fields(segment: PlainRows, head: int) -> dict[str, int]:
    return {
        "kind": _ROWS if segment.rotary is None else _BOOKS,
        "keys": _at(segment.k, head * segment.k.stride(0)),
        "values": _at(segment.v, head * segment.v.stride(0)),
        "at": _at(segment.at, head * segment.at.stride(0)),
        "at_size": segment.at.element_size(),
    }


def _book_fields(segment: CodebookRows) -> dict[str, int]:
    keys, values = segment.keys, segment.values
    return {
        "kind": _BOOKS,
        "keys": _at(keys.entries),
        "values": _at(values.entries),
        "at": _at(segment.at),
        "at_size": segment.at.element_size(),
        "key_refs": _at(keys.refs),
        "key_norms": 0 if keys.norms is None else _at(keys.norms),
        "key_size": keys.refs.element_size(),
        "value_refs": _at(values.refs),
        "value_norms": 0 if values.norms is None else _at(values.norms),
        "value_size": values.refs.element_size(),
    }


def _code_fields(segment: QuantizedRows, head: int) -> dict[str, int]:
    keys, values = segment.keys, segment.values
    _, rows, dim = segment.shape
    numbers = head * rows * dim
    key_group, value_group = numbers // segment.group, numbers // values.size
    return {
        "kind": _CODES,
        "keys": _at(keys.codes, numbers * keys.bits // 8),
        "values": _at(values.codes, numbers * values.bits // 8),
        "key_refs": _at(keys.steps, key_group),
        "key_norms": _at(keys.least, key_group),
        "key_size": keys.bits,
        "value_refs": _at(values.steps, value_group),
        "value_norms": _at(values.least, value_group),
        "value_size": values.bits,
        "key_group": segment.group,
        "value_group": values.size,
    }


def _tail_rows(reading: Reading) -> list[_SegmentRow]:
    """The tail as each head of the lane reads it: as long as it may become, held or not."""
    tail, c = reading.tail, reading.readers
    most = max(tail.most, tail.buffer.shape[2])
    of_heads = []
    for place in range(_extent(reading.lane[0])[0] if most else 0):
        query = reading.first_query + place * c
        of_heads.append(_SegmentRow(_TAIL, reading.row, query, c, most, query // reading.group, 0))
    return of_heads


def _extent(segment: Segment) -> tuple[int, int]:
    """Heads and rows of a segment; its positions may have to be computed and are not asked."""
    if isinstance(segment, CodebookRows):
        return 1, len(segment.at)
    if isinstance(segment, QuantizedRows):
        return segment.shape[:2]
    assert isinstance(segment, PlainRows)
    return segment.k.shape[0], segment.k.shape[1]


def _form(segment: Segment) -> tuple[int, torch.dtype] | None:
    """D and the cache's dtype; None of segments that the kernels do not know."""
    if isinstance(segment, CodebookRows):
        return segment.keys.entries.shape[1], segment.keys.entries.dtype
    if isinstance(segment, QuantizedRows):
        return segment.shape[2], segment.keys.steps.dtype
    return (segment.k.shape[2], segment.k.dtype) if isinstance(segment, PlainRows) else None


def _rotary(segment: Segment) -> Rotary | None:
    """What turns its keys as they are read."""
    return segment.rotary if isinstance(segment, (PlainRows, CodebookRows)) else None


def _readable(segment: Segment) -> bool:
    """Whether a segment's numbers are of a type and lie in a way that the kernels take."""
    form = _form(segment)
    assert form is not None
    dim, dtype = form
    if dtype not in (torch.float32, torch.bfloat16, torch.float16) or dim % 8:
        return False
    rotary = _rotary(segment)
    if rotary is not None:
        cos, sin = rotary.table.cos, rotary.table.sin
        alike = all(x.dtype == dtype and x.is_contiguous() for x in (cos, sin))
        if not (alike and rotary.turns_halves(dim)):
            return False
    if segment.members is not None and not _numbers(segment.members):
        return False
    if isinstance(segment, PlainRows):
        return all(_vectors(x, dtype) for x in (segment.k, segment.v)) and _numbers(segment.at)
    if isinstance(segment, CodebookRows):
        books = (segment.keys, segment.values)
        return _numbers(segment.at) and all(_readable_book(book, dtype) for book in books)
    assert isinstance(segment, QuantizedRows)
    packed = (segment.keys, segment.values)
    return all(x.steps.dtype == x.least.dtype == dtype for x in packed)


def _readable_book(book: Written, dtype: torch.dtype) -> bool:
    norms = book.norms
    fits = norms is None or (norms.dtype == dtype and norms.is_contiguous())
    return fits and _vectors(book.entries, dtype) and _numbers(book.refs)


def _vectors(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether vectors [.., n, D] follow one another, at addresses that wide loads take."""
    follow = x.stride(-1) == 1 and (x.shape[-2] <= 1 or x.stride(-2) == x.shape[-1])
    return x.dtype == dtype and follow and x.data_ptr() % 16 == 0


def _numbers(x: Tensor) -> bool:
    """Whether whole numbers [.., n] follow one another, in a size that `_whole` reads."""
    return (x.shape[-1] <= 1 or x.stride(-1) == 1) and x.dtype in (
        torch.uint8,
        torch.uint16,
        torch.int32,
    )


class _Shared(threading.local):
    """Scratch of the launches of one thread: its layers run one after the other."""

    def __init__(self) -> None:
        self.of_device: WeakValueDictionary[torch.device, Tensor] = WeakValueDictionary()


_shared = _Shared()


def _scratch(numbers: int, device: torch.device) -> Tensor:
    """At least so many float32 numbers, the same ones for all launches as long as they suffice."""
    found = _shared.of_device.get(device)
    if found is None or len(found) < numbers:
        found = torch.empty(_power_of_two(numbers), device=device)
        _shared.of_device[device] = found
    return found


def _power_of_two(number: int) -> int:
    """The least one that is not smaller; 1 for 0."""
    return 1 << max(0, number - 1).bit_length()


def _block(vector_bytes: int) -> int:
    """Rows that a program holds at once: 8 KB of keys, and of values.

    With 16 KB, programs that read codes keep 900 bytes a thread outside their registers, and
    float32 asks for more shared memory than GPUs below the A100 have (as compiled for sm80, sm90).
    """
    return max(16, min(64, 8192 // vector_bytes))


# Triton's language has no types, and its functions are compiled from source: mypy looks away.
if not TYPE_CHECKING and _DEFINED:
    import triton
    import triton.language as tl

    _FIELDS = tl.constexpr(len(_SegmentRow._fields))
    (
        _KIND,
        _ROW,
        _QUERY,
        _READERS,
        _LENGTH,
        _KEYS,
        _VALUES,
        _AT,
        _AT_SIZE,
        _MEMBERS,
        _MEMBER_SIZE,
        _KEY_REFS,
        _KEY_NORMS,
        _KEY_SIZE,
        _VALUE_REFS,
        _VALUE_NORMS,
        _VALUE_SIZE,
        _COS,
        _SIN,
        _KEY_GROUP,
        _VALUE_GROUP,
        _,
    ) = (tl.constexpr(i) for i in range(len(_SegmentRow._fields)))
    _IS_TAIL, _IS_BOOKS, _IS_CODES = (tl.constexpr(kind) for kind in (_TAIL, _BOOKS, _CODES))

    @triton.jit
    def _append(
        k,
        v,
        k_row,
        k_head,
        v_row,
        v_head,
        counts,
        tails,
        kv_heads,
        DIM: tl.constexpr,
        BLOCK_DIM: tl.constexpr,
    ):
        """Write the token of one row and KV head behind its tail."""
        row, head = tl.program_id(0) // kv_heads, tl.program_id(0) % kv_heads
        tail = tails + row * 4
        most = tl.load(tail + 2)
        count = tl.load(counts + row)
        d = tl.arange(0, BLOCK_DIM)
        # A row that is not fed may have no room left.
        inside = d < tl.where(count < most, DIM, 0)
        pointer = tl.pointer_type(k.dtype.element_ty)
        place = (head * most + count) * DIM + d
        new_k = tl.load(k + row * k_row + head * k_head + d, inside)
        tl.store(tl.load(tail).to(pointer) + place, new_k, inside)
        new_v = tl.load(v + row * v_row + head * v_head + d, inside)
        tl.store(tl.load(tail + 1).to(pointer) + place, new_v, inside)

    @triton.jit
    def _whole(address, i, inside, size):
        """Whole numbers of `size` bytes as int32; 0 where there are none."""
        # The interpreter takes no truth value of a block and a number together.
        size = tl.where(inside, size, 0)
        one = tl.load(address.to(tl.pointer_type(tl.uint8)) + i, size == 1, 0)
        two = tl.load(address.to(tl.pointer_type(tl.uint16)) + i, size == 2, 0)
        four = tl.load(address.to(tl.pointer_type(tl.int32)) + i, size == 4, 0)
        return one.to(tl.int32) + two.to(tl.int32) + four

    @triton.jit
    def _visible(segment, i, last, origin, now, window, WINDOWED: tl.constexpr):
        """Which of the rows i are there and in the window, and their positions."""
        inside = i < last
        at_size = tl.load(segment + _AT_SIZE)
        written = _whole(tl.load(segment + _AT), i, inside, at_size)
        position = tl.where(at_size == 0, i + origin, written)
        if WINDOWED:
            inside = inside & (position > now - window)
        return inside, position

    @triton.jit
    def _weights(
        product, segment, i, inside, most, total, scaling, softcap, c, CAPPED: tl.constexpr
    ):
        """Add rows to the softmax: their weights, the factor on earlier sums, and its new state.

        Weights and the total are relative to the largest logit seen so far.
        """
        logit = product * scaling
        if CAPPED:
            # The hyperbolic tangent, which Triton's language lacks.
            small = tl.exp(-2.0 * tl.abs(logit / softcap))
            bound = softcap * (1.0 - small) / (1.0 + small)
            logit = tl.where(logit < 0, -bound, bound)
        size = tl.load(segment + _MEMBER_SIZE)
        members = _whole(tl.load(segment + _MEMBERS), i, inside, size)
        members = tl.where(size == 0, -1, members)
        seen = inside[None, :] & (((members[None, :] >> c[:, None]) & 1) != 0)
        logit = tl.where(seen, logit, float("-inf"))
        larger = tl.maximum(most, tl.max(logit, 1))
        # As long as nothing was seen, the weights are exp(-inf), not exp(-inf + inf).
        base = tl.where(larger == float("-inf"), 0.0, larger)
        weight = tl.exp(logit - base[:, None])
        shrunk = tl.exp(most - base)
        return weight, shrunk, larger, total * shrunk + tl.sum(weight, 1)

    @triton.jit
    def _entries(refs, norms, i, inside, size, NUMBER: tl.constexpr):
        """Where vectors i of a book stand among its entries, and how long they are."""
        entry = tl.where(size == 0, i, _whole(refs, i, inside, size))
        has_norm = tl.where(inside, norms, 0) != 0
        norm = tl.load(norms.to(tl.pointer_type(NUMBER)) + i, has_norm, 1.0)
        return entry, norm.to(tl.float32)

    @triton.jit
    def _decoded(codes, steps, least, number, group, inside, bits, NUMBER: tl.constexpr):
        """Values of the codes at places `number`, as `group` says whose step is theirs."""
        place = number * bits
        byte = tl.load(codes.to(tl.pointer_type(tl.uint8)) + place // 8, inside, 0).to(tl.int32)
        code = (byte >> (place % 8)) & ((1 << bits) - 1)
        step = tl.load(steps.to(tl.pointer_type(NUMBER)) + group, inside, 0.0)
        low = tl.load(least.to(tl.pointer_type(NUMBER)) + group, inside, 0.0)
        return (code.to(tl.float32) * step.to(tl.float32) + low.to(tl.float32)).to(NUMBER)

    @triton.jit
    def _read(
        q,
        q_row,
        q_head,
        at,
        counts,
        pieces,
        segments,
        tails,
        sums,
        mosts,
        totals,
        scaling,
        softcap,
        window,
        DIM: tl.constexpr,
        BLOCK_DIM: tl.constexpr,
        READERS: tl.constexpr,
        PIECE: tl.constexpr,
        BLOCK: tl.constexpr,
        HALF: tl.constexpr,
        BLOCK_HALF: tl.constexpr,
        REST: tl.constexpr,
        BLOCK_REST: tl.constexpr,
        WINDOWED: tl.constexpr,
        CAPPED: tl.constexpr,
        HAS_BOOKS: tl.constexpr,
        HAS_CODES: tl.constexpr,
        INTERPRETED: tl.constexpr,
    ):
        """Sum one piece of a segment: values by weight, the largest logit, the total weight."""
        NUMBER: tl.constexpr = q.dtype.element_ty
        # The interpreter multiplies nothing shorter.
        FACTOR: tl.constexpr = tl.float32 if INTERPRETED else NUMBER
        piece = pieces + tl.program_id(0) * 4
        segment = segments + tl.load(piece) * _FIELDS
        first = tl.load(piece + 1).to(tl.int32)
        slot = tl.load(piece + 2)
        kind = tl.load(segment + _KIND)
        row = tl.load(segment + _ROW)
        readers = tl.load(segment + _READERS)
        last = tl.minimum(first + PIECE, tl.load(segment + _LENGTH)).to(tl.int32)
        now = tl.load(at + row).to(tl.int32)
        count = tl.load(counts + row).to(tl.int32)
        # The tail's last token is the one just appended.
        origin = tl.where(kind == _IS_TAIL, now - count, 0)
        last = tl.where(kind == _IS_TAIL, tl.minimum(last, count + 1), last)
        pointer = tl.pointer_type(NUMBER)
        keys, values = tl.load(segment + _KEYS), tl.load(segment + _VALUES)
        if kind == _IS_TAIL:
            tail = tails + row * 4
            head_bytes = tl.load(tail + 2) * DIM * (NUMBER.primitive_bitwidth // 8)
            values = tl.load(tail + 1) + keys * head_bytes
            keys = tl.load(tail) + keys * head_bytes

        c = tl.arange(0, READERS)
        d = tl.arange(0, BLOCK_DIM)
        reading = (c < readers)[:, None]
        queries = q + row * q_row + (tl.load(segment + _QUERY) + c)[:, None] * q_head
        within = (d < DIM)[None, :]
        most = tl.full([READERS], float("-inf"), tl.float32)
        total = tl.zeros([READERS], tl.float32)
        mixed = tl.zeros([READERS, BLOCK_DIM], tl.float32)

        if kind <= _IS_TAIL:
            query = tl.load(queries + d[None, :], reading & within, 0.0).to(FACTOR)
            rows_k = tl.multiple_of(keys.to(pointer), 16)
            rows_v = tl.multiple_of(values.to(pointer), 16)
            for start in range(first, last, BLOCK):
                i = start + tl.arange(0, BLOCK)
                inside, _ = _visible(segment, i, last, origin, now, window, WINDOWED)
                place, there = i[:, None] * DIM + d[None, :], inside[:, None] & within
                key = tl.load(rows_k + place, there, 0.0).to(FACTOR)
                product = tl.dot(query, tl.trans(key), input_precision="ieee")
                weight, shrunk, most, total = _weights(
                    product, segment, i, inside, most, total, scaling, softcap, c, CAPPED
                )
                value = tl.load(rows_v + place, there, 0.0).to(FACTOR)
                mixed = mixed * shrunk[:, None]
                mixed = tl.dot(weight.to(FACTOR), value, mixed, input_precision="ieee")

        if HAS_BOOKS:
            h = tl.arange(0, BLOCK_HALF)
            half = (h < HALF)[None, :]
            if kind == _IS_BOOKS:
                query_1 = tl.load(queries + h[None, :], reading & half, 0.0).to(FACTOR)
                query_2 = tl.load(queries + HALF + h[None, :], reading & half, 0.0).to(FACTOR)
                cos = tl.load(segment + _COS).to(pointer)
                sin = tl.load(segment + _SIN).to(pointer)
                key_refs, key_norms = tl.load(segment + _KEY_REFS), tl.load(segment + _KEY_NORMS)
                value_refs = tl.load(segment + _VALUE_REFS)
                value_norms = tl.load(segment + _VALUE_NORMS)
                key_size, value_size = tl.load(segment + _KEY_SIZE), tl.load(segment + _VALUE_SIZE)
                rows_k = tl.multiple_of(keys.to(pointer), 16)
                rows_v = tl.multiple_of(values.to(pointer), 16)
                for start in range(first, last, BLOCK):
                    i = start + tl.arange(0, BLOCK)
                    inside, position = _visible(segment, i, last, origin, now, window, WINDOWED)
                    entry, norm = _entries(key_refs, key_norms, i, inside, key_size, NUMBER)
                    there = inside[:, None] & half
                    place = entry[:, None] * DIM + h[None, :]
                    key_1 = tl.load(rows_k + place, there, 0.0).to(tl.float32) * norm[:, None]
                    key_2 = tl.load(rows_k + HALF + place, there, 0.0).to(tl.float32)
                    key_2 = key_2 * norm[:, None]
                    angle = position[:, None] * (2 * HALF) + h[None, :]
                    cos_1 = tl.load(cos + angle, there, 0.0).to(tl.float32)
                    sin_1 = tl.load(sin + angle, there, 0.0).to(tl.float32)
                    cos_2 = tl.load(cos + HALF + angle, there, 0.0).to(tl.float32)
                    sin_2 = tl.load(sin + HALF + angle, there, 0.0).to(tl.float32)
                    turned_1 = (key_1 * cos_1 - key_2 * sin_1).to(FACTOR)
                    turned_2 = (key_2 * cos_2 + key_1 * sin_2).to(FACTOR)
                    product = tl.dot(query_1, tl.trans(turned_1), input_precision="ieee")
                    product = tl.dot(query_2, tl.trans(turned_2), product, input_precision="ieee")
                    if REST > 0:
                        # Channels that a partial rotation leaves.
                        r = tl.arange(0, BLOCK_REST)
                        rest = (r < REST)[None, :]
                        query_3 = tl.load(queries + 2 * HALF + r[None, :], reading & rest, 0.0)
                        place = entry[:, None] * DIM + 2 * HALF + r[None, :]
                        key_3 = tl.load(rows_k + place, inside[:, None] & rest, 0.0)
                        key_3 = (key_3.to(tl.float32) * norm[:, None]).to(FACTOR)
                        product = tl.dot(
                            query_3.to(FACTOR), tl.trans(key_3), product, input_precision="ieee"
                        )
                    weight, shrunk, most, total = _weights(
                        product, segment, i, inside, most, total, scaling, softcap, c, CAPPED
                    )
                    entry, norm = _entries(value_refs, value_norms, i, inside, value_size, NUMBER)
                    place = entry[:, None] * DIM + d[None, :]
                    value = tl.load(rows_v + place, inside[:, None] & within, 0.0)
                    value = (value.to(tl.float32) * norm[:, None]).to(FACTOR)
                    mixed = mixed * shrunk[:, None]
                    mixed = tl.dot(weight.to(FACTOR), value, mixed, input_precision="ieee")

        if HAS_CODES:
            tokens = tl.load(segment + _KEY_GROUP).to(tl.int32)
            channels = tl.load(segment + _VALUE_GROUP).to(tl.int32)
            if kind == _IS_CODES:
                query = tl.load(queries + d[None, :], reading & within, 0.0).to(FACTOR)
                key_steps, key_least = tl.load(segment + _KEY_REFS), tl.load(segment + _KEY_NORMS)
                value_steps = tl.load(segment + _VALUE_REFS)
                value_least = tl.load(segment + _VALUE_NORMS)
                key_bits = tl.load(segment + _KEY_SIZE).to(tl.int32)
                value_bits = tl.load(segment + _VALUE_SIZE).to(tl.int32)
                for start in range(first, last, BLOCK):
                    i = start + tl.arange(0, BLOCK)
                    inside, _ = _visible(segment, i, last, origin, now, window, WINDOWED)
                    there = inside[:, None] & within
                    group = (i // tokens)[:, None] * DIM + d[None, :]
                    number = group * tokens + (i % tokens)[:, None]
                    key = _decoded(
                        keys, key_steps, key_least, number, group, there, key_bits, NUMBER
                    ).to(FACTOR)
                    product = tl.dot(query, tl.trans(key), input_precision="ieee")
                    weight, shrunk, most, total = _weights(
                        product, segment, i, inside, most, total, scaling, softcap, c, CAPPED
                    )
                    number = i[:, None] * DIM + d[None, :]
                    group = number // channels
                    value = _decoded(
                        values, value_steps, value_least, number, group, there, value_bits, NUMBER
                    ).to(FACTOR)
                    mixed = mixed * shrunk[:, None]
                    mixed = tl.dot(weight.to(FACTOR), value, mixed, input_precision="ieee")

        tl.store(mosts + slot + c, most, c < readers)
        tl.store(totals + slot + c, total, c < readers)
        tl.store(sums + (slot + c)[:, None] * DIM + d[None, :], mixed, reading & within)

    @triton.jit
    def _merge(
        sums,
        mosts,
        totals,
        heads,
        known,
        out,
        out_row,
        out_head,
        queries,
        DIM: tl.constexpr,
        BLOCK_DIM: tl.constexpr,
    ):
        """Merge the pieces that one query head of one row read; zeros where there are none."""
        program = tl.program_id(0)
        head = heads + program * 4
        is_known = program < known
        first = tl.load(head, is_known, 0)
        count = tl.load(head + 1, is_known, 0).to(tl.int32)
        step = tl.load(head + 2, is_known, 0)
        d = tl.arange(0, BLOCK_DIM)
        most = tl.full([1], float("-inf"), tl.float32)
        total = tl.zeros([1], tl.float32)
        mixed = tl.zeros([BLOCK_DIM], tl.float32)
        for start in range(0, count, 16):
            i = start + tl.arange(0, 16)
            slot = first + i * step
            largest = tl.load(mosts + slot, i < count, float("-inf"))
            larger = tl.maximum(most, tl.max(largest, 0))
            base = tl.where(larger == float("-inf"), 0.0, larger)
            # 0 for pieces that no row was seen of.
            weight, shrunk = tl.exp(largest - base), tl.exp(most - base)
            there = (i < count)[:, None] & (d < DIM)[None, :]
            part = tl.load(sums + slot[:, None] * DIM + d[None, :], there, 0.0)
            mixed = mixed * shrunk + tl.sum(weight[:, None] * part, 0)
            total = total * shrunk + tl.sum(weight * tl.load(totals + slot, i < count, 0.0), 0)
            most = larger
        place = program // queries * out_row + program % queries * out_head + d
        tl.store(out + place, mixed / tl.where(total == 0, 1.0, total), d < DIM)
