"""Attention of one token over stored rows, compiled by numba: what `cpu_kernels` launches.

Importing this imports numba. Everything is float32 and is reached by addresses, as the tables of
`cpu_kernels` list them; a compiled kernel holds no Python object and runs without the lock.

Letters: c readers of a head, n rows, M entries, D head dim.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import gcd
from typing import Any, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])
Kernel = Callable[..., None]
Context = Any
Builder = Any
Typed = Any

PLAIN, CODEBOOK, QUANTIZED = range(3)
"""Kinds of segments."""

_SIDE = ("vectors", "stride", "refs", "ref_bytes", "scales", "least", "size")
"""Of keys or values: rows, entries or codes; norms or steps; entries of a book, or of a group."""

JOB_FIELDS = (
    "row",
    "query",
    "kv_head",
    "first_segment",
    "end_segment",
    "rows",
    "tail_keys",
    "tail_values",
    "tail_stride",
)
"""One head of a lane: int64 each; strides count elements, `tail_keys` and such are addresses."""

SEGMENT_FIELDS = (
    "kind",
    "rows",
    "positions",
    "position_bytes",
    "members",
    "cos",
    "sin",
    "table_stride",
    *(f"{side}_{name}" for side in ("key", "value") for name in _SIDE),
)
"""A segment of one head; 0 where a kind has no such thing, for positions: 0, 1, 2, ..."""

_BLOCK = 32
"""Quantized rows rebuilt at once."""

_AHEAD = 8
"""Rows whose entries are asked for ahead: 4 to 16 measure alike, none 1.3 times the time."""

_FAST = {"reassoc", "contract", "arcp", "nsz", "afn"}  # infinities hide rows: no ninf, no nnan

# Where the fields of a table stand.
_J_ROW, _J_QUERY, _, _J_FIRST, _J_END, _J_ROWS = range(6)
_J_TAIL_KEYS, _J_TAIL_VALUES, _J_TAIL_STRIDE = range(6, 9)
_S_KIND, _S_ROWS, _S_AT, _S_AT_BYTES, _S_MEMBERS, _S_COS, _S_SIN, _S_TABLE = range(8)
_S_K, _S_K_STRIDE, _S_K_REFS, _S_K_REF_BYTES, _S_K_SCALES, _S_K_LEAST, _ = range(8, 15)
_S_V, _S_V_STRIDE, _S_V_REFS, _S_V_REF_BYTES, _S_V_SCALES, _S_V_LEAST, _S_V_SIZE = range(15, 22)


def _compiled(function: Function) -> Function:
    """Compile a function when it is first called, once and for all."""
    options = {"nogil": True, "cache": True, "fastmath": _FAST, "error_model": "numpy"}
    return cast(Function, njit(**options)(function))


def _inlined(function: Function) -> Function:
    """Write a function into those that call it, which gives it their constants."""
    return cast(Function, njit(inline="always")(function))


def _without_value(build: Callable[..., None]) -> Callable[..., Any]:
    """Code of an intrinsic that returns nothing."""

    def built(context: Context, builder: Builder, signature: Any, arguments: Any) -> Any:
        build(context, builder, signature, arguments)
        return context.get_dummy_value()

    return built


def _pointer(dtype: Typed) -> Any:
    """A function of compiled code: address -> pointer to numbers of a type."""

    @intrinsic  # type: ignore[untyped-decorator]
    def pointer(_: Context, address: Typed) -> Any:
        def build(context: Context, builder: Builder, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(dtype)(types.int64), build

    return pointer


_floats = _pointer(types.float32)
_int32s = _pointer(types.int32)
_uint16s = _pointer(types.uint16)
_bytes = _pointer(types.uint8)


@intrinsic  # type: ignore[untyped-decorator]
def _larger(_: Context, x: Typed, y: Typed) -> Any:
    """The larger of two numbers, neither NaN: said to the compiler, which then takes many."""

    def build(_: Context, builder: Builder, __: Any, arguments: Any) -> Any:
        x, y = arguments
        flags = ("nnan", "nsz")
        return builder.select(builder.fcmp_ordered(">", x, y, flags=flags), x, y, flags=flags)

    return types.float32(types.float32, types.float32), build


@intrinsic  # type: ignore[untyped-decorator]
def _nearest(_: Context, x: Typed) -> Any:
    """The nearest whole number, as float32."""

    def build(_: Context, builder: Builder, __: Any, arguments: Any) -> Any:
        single = ir.FloatType()
        kind = ir.FunctionType(single, [single])
        function = builder.module.declare_intrinsic("llvm.rint", [single], kind)
        return builder.call(function, arguments)

    return types.float32(types.float32), build


@intrinsic  # type: ignore[untyped-decorator]
def _power_of_two(_: Context, exponent: Typed) -> Any:
    """2 to a whole exponent from -126 to 127, as float32."""

    def build(_: Context, builder: Builder, __: Any, arguments: Any) -> Any:
        whole = ir.IntType(32)
        biased = builder.add(builder.fptosi(arguments[0], whole), whole(127))
        return builder.bitcast(builder.shl(biased, whole(23)), ir.FloatType())

    return types.float32(types.float32), build


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(_: Context, address: Typed) -> Any:
    """Have the cache line at an address brought near."""

    def build(context: Context, builder: Builder, _: Any, arguments: Any) -> Any:
        whole, where = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [where, whole, whole, whole])
        function = builder.module.declare_intrinsic("llvm.prefetch", [where], kind)
        line = builder.inttoptr(arguments[0], where)
        builder.call(function, [line, whole(0), whole(3), whole(1)])
        return context.get_dummy_value()

    return types.none(types.int64), build


@_inlined
def _exp(x: Any) -> Any:
    """Exp of a float32 that is at most 0 or little more, within 2e-7 of it; 0 below -87."""
    x_clipped = _larger(x, np.float32(-87.0))
    whole = _nearest(x_clipped * np.float32(1.44269504))
    rest = x_clipped - whole * np.float32(0.693359375)
    rest = rest + whole * np.float32(2.12194440e-4)
    y = np.float32(1.9875691500e-4)
    y = y * rest + np.float32(1.3981999507e-3)
    y = y * rest + np.float32(8.3334519073e-3)
    y = y * rest + np.float32(4.1665795894e-2)
    y = y * rest + np.float32(1.6666665459e-1)
    y = y * rest + np.float32(5.0000001201e-1)
    y = y * rest * rest + rest + np.float32(1.0)
    y = y * _power_of_two(whole)
    return y if x > np.float32(-87.0) else np.float32(0.0)


@_inlined
def _tanh(x: Any) -> Any:
    """Tanh of a float32: a polynomial near 0, where the exponentials would cancel."""
    size = abs(x)
    far = np.float32(1.0) - np.float32(2.0) / (
        np.float32(1.0) / _exp(np.float32(-2.0) * size) + np.float32(1.0)
    )
    square = x * x
    y = np.float32(-5.70498872745e-3)
    y = y * square + np.float32(2.06390887954e-2)
    y = y * square + np.float32(-5.37397155531e-2)
    y = y * square + np.float32(1.33314422036e-1)
    y = y * square + np.float32(-3.33332819422e-1)
    near = y * square * x + x
    signed = far if x > np.float32(0.0) else -far
    return near if size < np.float32(0.625) else signed


class _Lanes:
    """Writes compiled code that works on several float32 at once, as wide as divides a size."""

    _FLAGS = ("reassoc", "contract", "nsz")

    def __init__(self, builder: Builder, *sizes: int) -> None:
        """Work on at most 16 at once, which divides every size."""
        self.builder = builder
        self.width = gcd(16, *sizes)
        self.type = ir.VectorType(ir.FloatType(), self.width)

    def at(self, pointer: Any, first: int | Any) -> Any:
        """Where `width` numbers lie, `first` numbers behind a pointer."""
        index = ir.Constant(ir.IntType(64), first) if isinstance(first, int) else first
        place = self.builder.gep(pointer, [index])
        return self.builder.bitcast(place, self.type.as_pointer())

    def load(self, pointer: Any, first: int) -> Any:
        """The numbers from the `first` behind a pointer."""
        return self.builder.load(self.at(pointer, first), align=4)

    def store(self, numbers: Any, pointer: Any, first: int) -> None:
        """Put numbers back."""
        self.builder.store(numbers, self.at(pointer, first), align=4)

    def times(self, x: Any, y: Any) -> Any:
        """X y."""
        return self.builder.fmul(x, y, flags=self._FLAGS)

    def plus(self, x: Any, y: Any) -> Any:
        """X + y."""
        return self.builder.fadd(x, y, flags=self._FLAGS)

    def minus(self, x: Any, y: Any) -> Any:
        """X - y."""
        return self.builder.fsub(x, y, flags=self._FLAGS)

    def spread(self, number: Any) -> Any:
        """One number in every lane."""
        none = ir.Constant(self.type, ir.Undefined)
        zero = ir.Constant(ir.IntType(32), 0)
        one = self.builder.insert_element(none, number, zero)
        return self.builder.shuffle_vector(one, none, self._mask([0] * self.width))

    def sums(self, vectors: list[Any]) -> list[Any]:
        """The sum of each vector's lanes: halves of two vectors are added at once."""
        wanted, size = len(vectors), self.width
        while len(vectors) > 1 and size > 1:
            vectors = vectors + vectors[-1:] * (len(vectors) % 2)
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [self._halved(x, y, size, 2 * self.width) for x, y in pairs]
            size //= 2
        lanes = self.width
        while size > 1:
            vectors = [self._halved(x, x, size, lanes) for x in vectors]
            size, lanes = size // 2, lanes // 2
        per_vector = lanes
        return [
            self.builder.extract_element(
                vectors[i // per_vector], ir.Constant(ir.IntType(32), i % per_vector)
            )
            for i in range(wanted)
        ]

    def _halved(self, x: Any, y: Any, size: int, lanes: int) -> Any:
        """Add the halves of every `size` of the first `lanes` lanes of x and y."""
        half = size // 2
        low = [i for first in range(0, lanes, size) for i in range(first, first + half)]
        parts = [
            self.builder.shuffle_vector(x, y, self._mask([i + shift for i in low]))
            for shift in (0, half)
        ]
        return self.plus(*parts)

    def _mask(self, places: list[int]) -> Any:
        return ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places)


def _write(builder: Builder, numbers: list[Any], pointer: Any, stride: Any) -> None:
    """Store numbers `stride` apart."""
    for r, number in enumerate(numbers):
        place = builder.mul(stride, ir.Constant(ir.IntType(64), r))
        builder.store(number, builder.gep(pointer, [place]))


_FLOATS = types.CPointer(types.float32)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _dots(_: Any, key: Any, q: Any, logits: Any, held: Any, dim: Any, readers: Any) -> Any:
    """Products of c queries [c, D] with one key, `held` numbers apart."""
    channels, heads = dim.literal_value, readers.literal_value

    def build(_: Context, builder: Builder, __: Any, arguments: Any) -> Any:
        key, q, logits, held, *_ = arguments
        lanes = _Lanes(builder, channels)
        totals: list[Any] = [None] * heads
        for d in range(0, channels, lanes.width):
            x = lanes.load(key, d)
            for r in range(heads):
                product = lanes.times(x, lanes.load(q, r * channels + d))
                totals[r] = product if d == 0 else lanes.plus(totals[r], product)
        _write(builder, lanes.sums(totals), logits, held)

    return types.none(_FLOATS, _FLOATS, _FLOATS, types.int64, dim, readers), _without_value(build)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _turned_dots(
    _: Any,
    key: Any,
    scale: Any,
    cos: Any,
    sin: Any,
    q: Any,
    logits: Any,
    held: Any,
    dim: Any,
    readers: Any,
    turned: Any,
) -> Any:
    """The same of `scale` times a key whose first `turned` channels are rotated, half by half."""
    channels, heads, rotated = (x.literal_value for x in (dim, readers, turned))
    half = rotated // 2

    def build(_: Context, builder: Builder, __: Any, arguments: Any) -> Any:
        key, scale, cos, sin, q, logits, held, *_ = arguments
        lanes = _Lanes(builder, half, channels - rotated)
        totals: list[Any] = [None] * heads

        def add(numbers: Any, first: int) -> None:
            for r in range(heads):
                product = lanes.times(numbers, lanes.load(q, r * channels + first))
                totals[r] = product if totals[r] is None else lanes.plus(totals[r], product)

        for d in range(0, half, lanes.width):
            x, y = lanes.load(key, d), lanes.load(key, d + half)
            low = lanes.times(y, lanes.load(sin, d))
            high = lanes.times(x, lanes.load(sin, d + half))
            add(lanes.minus(lanes.times(x, lanes.load(cos, d)), low), d)
            add(lanes.plus(lanes.times(y, lanes.load(cos, d + half)), high), d + half)
        for d in range(rotated, channels, lanes.width):
            add(lanes.load(key, d), d)
        scaled = [lanes.times(total, scale) for total in lanes.sums(totals)]
        _write(builder, scaled, logits, held)

    kinds = (_FLOATS, types.float32, *(_FLOATS,) * 4, types.int64, dim, readers, turned)
    return types.none(*kinds), _without_value(build)


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def _mix(
    _: Any,
    rows: Any,
    stride: Any,
    n: Any,
    weights: Any,
    along: Any,
    across: Any,
    out: Any,
    dim: Any,
    readers: Any,
) -> Any:
    """Add n rows times weights[r * across + t * along] to out [c, D]."""
    channels, heads = dim.literal_value, readers.literal_value

    def build(_: Context, builder: Builder, __: Any, arguments: Any) -> Any:
        rows, stride, n, weights, along, across, out, *_ = arguments
        lanes = _Lanes(builder, channels)
        # As many sums as stay in registers.
        together = max(1, 24 // heads) * lanes.width
        whole = ir.IntType(64)
        for first in range(0, channels, together):
            some = range(first, min(first + together, channels), lanes.width)
            places = [(r, d) for d in some for r in range(heads)]
            sums = {}
            for r, d in places:
                sums[r, d] = cgutils.alloca_once(builder, lanes.type)
                builder.store(lanes.load(out, r * channels + d), sums[r, d])
            with cgutils.for_range(builder, n) as loop:
                row = builder.gep(rows, [builder.mul(loop.index, stride)])
                weight = builder.gep(weights, [builder.mul(loop.index, along)])
                by_head = [
                    lanes.spread(builder.load(builder.gep(weight, [builder.mul(across, whole(r))])))
                    for r in range(heads)
                ]
                for d in some:
                    x = lanes.load(row, d)
                    for r in range(heads):
                        total = lanes.plus(builder.load(sums[r, d]), lanes.times(x, by_head[r]))
                        builder.store(total, sums[r, d])
            for r, d in places:
                lanes.store(builder.load(sums[r, d]), out, r * channels + d)

    kinds = (_FLOATS, types.int64, types.int64, _FLOATS, types.int64, types.int64, _FLOATS)
    return types.none(*kinds, dim, readers), _without_value(build)


@_inlined
def _index(address: Any, size: Any, t: Any) -> Any:
    """The t-th of the whole numbers of 2 or 4 bytes at an address."""
    return np.int64(_uint16s(address)[t]) if size == 2 else np.int64(_int32s(address)[t])


@_compiled
def _cap(logits: Any, held: Any, readers: Any, n: Any, softcap: Any) -> None:
    """Bound n logits of each reader."""
    cap, inverse = np.float32(softcap), np.float32(1.0 / softcap)
    for r in range(readers):
        for t in range(n):
            logits[r * held + t] = cap * _tanh(logits[r * held + t] * inverse)


@_compiled
def _hide(segment: Any, first: Any, logits: Any, held: Any, readers: Any) -> None:
    """Set the logits of rows that must not be seen to -inf: non-members, positions below first."""
    n = segment[_S_ROWS]
    hidden = np.float32(-np.inf)
    if segment[_S_MEMBERS] != 0:
        members = _bytes(segment[_S_MEMBERS])
        for r in range(readers):
            for t in range(n):
                reads = (members[t] >> r) & 1
                logits[r * held + t] = logits[r * held + t] if reads != 0 else hidden
    if first > 0:
        for t in range(n):
            stands = t
            if segment[_S_AT] != 0:
                stands = _index(segment[_S_AT], segment[_S_AT_BYTES], t)
            if stands < first:
                for r in range(readers):
                    logits[r * held + t] = hidden


@_compiled
def _weigh(logits: Any, held: Any, readers: Any, shares: Any) -> None:
    """Turn logits into exponentials, and say what one of them is of their sum."""
    for r in range(readers):
        most = np.float32(-np.inf)
        for t in range(held):
            most = _larger(logits[r * held + t], most)
        total = np.float32(0.0)
        for t in range(held):
            weight = _exp(logits[r * held + t] - most)
            logits[r * held + t] = weight
            total += weight
        shares[r] = np.float32(1.0) / total


@_inlined
def _plain_products(
    keys: Any, stride: Any, n: Any, q: Any, place: Any, held: Any, dim: Any, readers: Any
) -> None:
    """Logits at an address, of n keys."""
    for t in range(n):
        _dots(_floats(keys + 4 * t * stride), q, _floats(place + 4 * t), held, dim, readers)


@_inlined
def _turned_products(
    segment: Any, q: Any, place: Any, held: Any, dim: Any, readers: Any, turned: Any
) -> None:
    """Logits of keys that are rotated as they are read, and may be written with a book."""
    n, entries, stride = segment[_S_ROWS], segment[_S_K], 4 * segment[_S_K_STRIDE]
    refs, size, norms = segment[_S_K_REFS], segment[_S_K_REF_BYTES], segment[_S_K_SCALES]
    for t in range(n):
        key = t
        scale = np.float32(1.0)
        if refs != 0:
            key = _index(refs, size, t)
            # Entries lie anywhere: the processor cannot tell which comes next.
            ahead = entries + stride * _index(refs, size, min(t + _AHEAD, n - 1))
            for line in range(0, 4 * dim, 64):
                _prefetch(ahead + line)
        if norms != 0:
            scale = _floats(norms)[t]
        angle = 4 * segment[_S_TABLE] * _index(segment[_S_AT], segment[_S_AT_BYTES], t)
        cos, sin = _floats(segment[_S_COS] + angle), _floats(segment[_S_SIN] + angle)
        entry, here = _floats(entries + stride * key), _floats(place + 4 * t)
        _turned_dots(entry, scale, cos, sin, q, here, held, dim, readers, turned)


@_inlined
def _coded_products(
    segment: Any,
    q: Any,
    block: Any,
    scores: Any,
    logits: Any,
    held: Any,
    dim: Any,
    readers: Any,
    bits: Any,
    group: Any,
) -> None:
    """Logits of quantized keys, a group of tokens at a time.

    A byte's codes belong to neighboring tokens; taken one place of a byte after the other they need
    no shuffling, and the products are put in order.
    """
    per_byte = 8 // bits
    size = group // per_byte
    for b in range(segment[_S_ROWS] // group):
        codes = _bytes(segment[_S_K] + b * dim * size)
        steps = _floats(segment[_S_K_SCALES] + 4 * b * dim)
        least = _floats(segment[_S_K_LEAST] + 4 * b * dim)
        for d in range(dim):
            for p in range(per_byte):
                for i in range(size):
                    code = (codes[d * size + i] >> (bits * p)) & (2**bits - 1)
                    block[d * group + p * size + i] = np.float32(code) * steps[d] + least[d]
        for i in range(readers * group):
            scores[i] = np.float32(0.0)
        _mix(block, group, dim, q, 1, dim, scores, group, readers)
        for r in range(readers):
            for p in range(per_byte):
                for i in range(size):
                    score = scores[r * group + p * size + i]
                    logits[r * held + b * group + i * per_byte + p] = score


@_inlined
def _coded_mix(
    segment: Any,
    block: Any,
    place: Any,
    held: Any,
    coded: Any,
    sums: Any,
    dim: Any,
    readers: Any,
    bits: Any,
) -> None:
    """Add quantized values times their weights, a block of tokens at a time, likewise."""
    per_byte = 8 // bits
    row = dim // per_byte
    groups, size = dim // segment[_S_V_SIZE], segment[_S_V_SIZE] // per_byte
    for i in range(readers * dim):
        coded[i] = np.float32(0.0)
    for b in range(0, segment[_S_ROWS], _BLOCK):
        n = min(_BLOCK, segment[_S_ROWS] - b)
        codes = _bytes(segment[_S_V] + b * row)
        steps = _floats(segment[_S_V_SCALES] + 4 * b * groups)
        least = _floats(segment[_S_V_LEAST] + 4 * b * groups)
        for t in range(n):
            for g in range(groups):
                step, low = steps[t * groups + g], least[t * groups + g]
                for p in range(per_byte):
                    for i in range(size):
                        code = (codes[t * row + g * size + i] >> (bits * p)) & (2**bits - 1)
                        block[t * dim + p * row + g * size + i] = np.float32(code) * step + low
        _mix(block, dim, n, _floats(place + 4 * b), 1, held, coded, dim, readers)
    for r in range(readers):
        for p in range(per_byte):
            for i in range(row):
                sums[r * dim + i * per_byte + p] += coded[r * dim + p * row + i]


@_inlined
def _book_mix(
    segment: Any,
    weights: Any,
    held: Any,
    by_entry: Any,
    sums: Any,
    dim: Any,
    readers: Any,
    padded: Any,
) -> None:
    """Add values written with a book: the weights of an entry's rows are summed first."""
    entries = segment[_S_V_SIZE]
    for i in range(entries * padded):
        by_entry[i] = np.float32(0.0)
    for t in range(segment[_S_ROWS]):
        entry = _index(segment[_S_V_REFS], segment[_S_V_REF_BYTES], t)
        scale = np.float32(1.0)
        if segment[_S_V_SCALES] != 0:
            scale = _floats(segment[_S_V_SCALES])[t]
        for r in range(readers):
            by_entry[entry * padded + r] += weights[r * held + t] * scale
    values = _floats(segment[_S_V])
    _mix(values, segment[_S_V_STRIDE], entries, by_entry, padded, 1, sums, dim, readers)


def fixed_scratch(dim: int, readers: int, group: int) -> int:
    """Floats of scratch that a kernel needs beside its logits and its entries' weights."""
    return readers * (3 * dim + max(group, 1)) + max(_BLOCK, group) * dim


def padded_readers(readers: int) -> int:
    """Floats that the weights of one entry take: the next power of two."""
    return 1 << (readers - 1).bit_length()


@_compiled
def append(
    tails: Any,
    dim: Any,
    k: Any,
    k_row: Any,
    k_head: Any,
    v: Any,
    v_row: Any,
    v_head: Any,
    counts: Any,
) -> None:
    """Write each row's new keys and values into its tail behind the tokens it holds."""
    for i in range(len(tails)):
        row, head = tails[i, 0], tails[i, 1]
        keys, values, stride = tails[i, 2], tails[i, 3], tails[i, 4]
        behind = 4 * counts[row] * stride
        into, source = _floats(keys + behind), _floats(k + 4 * (row * k_row + head * k_head))
        for d in range(dim):
            into[d] = source[d]
        into, source = _floats(values + behind), _floats(v + 4 * (row * v_row + head * v_head))
        for d in range(dim):
            into[d] = source[d]


@cache
def attention(dim: int, readers: int, turned: int, bits: int, group: int) -> Kernel:
    """The kernel for one head dim, number of readers, rotation and coding, compiled when called.

    Args:
        dim: D.
        readers: c of every head it is given.
        turned: channels of a key that a rotation on read turns; 0 where none does.
        bits: of the codes of quantized rows; 0 where it is given none.
        group: tokens that share a step of quantized keys; 0 likewise.
    """
    padded = padded_readers(readers)
    # Bytes from the start of the scratch.
    sums_at = 4 * readers * dim
    coded_at = 2 * sums_at
    scores_at = 3 * sums_at
    block_at = scores_at + 4 * readers * max(group, 1)
    logits_at = 4 * fixed_scratch(dim, readers, group)

    @_compiled
    def attend(
        jobs: Any,
        segments: Any,
        first: Any,
        end: Any,
        q: Any,
        q_row: Any,
        q_head: Any,
        out: Any,
        out_row: Any,
        at: Any,
        counts: Any,
        scaling: Any,
        softcap: Any,
        window: Any,
        work: Any,
    ) -> None:
        scaled, sums = _floats(work), _floats(work + sums_at)
        coded, scores = _floats(work + coded_at), _floats(work + scores_at)
        block, logits = _floats(work + block_at), _floats(work + logits_at)
        for j in range(first, end):
            job = jobs[j]
            row = job[_J_ROW]
            count = counts[row]
            source = _floats(q + 4 * (row * q_row + job[_J_QUERY] * q_head))
            for r in range(readers):
                for d in range(dim):
                    scaled[r * dim + d] = source[r * q_head + d] * np.float32(scaling)
                    sums[r * dim + d] = np.float32(0.0)
            # The tail's rows lie at neighboring positions and end with the token itself.
            visible = at[row] - window + 1 if window > 0 else 0
            skipped = max(0, count + 1 - window) if window > 0 else 0
            newest = count + 1 - skipped
            held = job[_J_ROWS] + newest
            by_entry = _floats(work + logits_at + 4 * readers * held)
            place = work + logits_at
            for s in range(job[_J_FIRST], job[_J_END]):
                segment = segments[s]
                n = segment[_S_ROWS]
                here = _floats(place)
                if bits > 0 and segment[_S_KIND] == QUANTIZED:
                    _coded_products(
                        segment, scaled, block, scores, here, held, dim, readers, bits, group
                    )
                elif turned > 0 and segment[_S_COS] != 0:
                    _turned_products(segment, scaled, place, held, dim, readers, turned)
                else:
                    keys, stride = segment[_S_K], segment[_S_K_STRIDE]
                    _plain_products(keys, stride, n, scaled, place, held, dim, readers)
                if softcap > 0.0:
                    _cap(here, held, readers, n, softcap)
                _hide(segment, visible, here, held, readers)
                place += 4 * n
            stride = job[_J_TAIL_STRIDE]
            keys = job[_J_TAIL_KEYS] + 4 * skipped * stride
            _plain_products(keys, stride, newest, scaled, place, held, dim, readers)
            if softcap > 0.0:
                _cap(_floats(place), held, readers, newest, softcap)
            _weigh(logits, held, readers, scores)
            place = work + logits_at
            for s in range(job[_J_FIRST], job[_J_END]):
                segment = segments[s]
                n = segment[_S_ROWS]
                here = _floats(place)
                if bits > 0 and segment[_S_KIND] == QUANTIZED:
                    _coded_mix(segment, block, place, held, coded, sums, dim, readers, bits)
                elif turned > 0 and segment[_S_KIND] == CODEBOOK:
                    _book_mix(segment, here, held, by_entry, sums, dim, readers, padded)
                else:
                    values = _floats(segment[_S_V])
                    _mix(values, segment[_S_V_STRIDE], n, here, 1, held, sums, dim, readers)
                place += 4 * n
            values = _floats(job[_J_TAIL_VALUES] + 4 * skipped * stride)
            _mix(values, stride, newest, _floats(place), 1, held, sums, dim, readers)
            result = _floats(out + 4 * (row * out_row + dim * job[_J_QUERY]))
            for r in range(readers):
                for d in range(dim):
                    result[r * dim + d] = sums[r * dim + d] * scores[r]

    return attend
