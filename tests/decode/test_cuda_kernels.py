"""The Triton kernels equal the plain form, under Triton's interpreter and on a GPU if there is one.

Triton asks whether to interpret when it is imported, so the cases run in a process of their own:
`TRITON_INTERPRET=1 pytest -o python_functions='case_*' tests/decode/test_cuda_kernels.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kvbench.cache.codebook import store_codebook
from kvbench.cache.quantized import packed, store_quantized
from kvbench.cache.rows import store_ragged_rows, store_rows
from kvbench.cache.segments import CodebookRows, PlainRows, QuantizedRows, Written
from kvbench.cache.store import Lane, Store
from kvbench.decode import cuda_kernels
from kvbench.decode.reading import Reading, TailRows, attend
from kvbench.model.attention import AttentionRule
from kvbench.model.rotary import Rotary, RotaryTable
from support.naive import TOLERANCE, random_prefill, rotate_half

ON_GPU = torch.cuda.is_available() and "TRITON_INTERPRET" not in os.environ
DEVICE = "cuda" if ON_GPU else "cpu"
NOW = 400
"""Position of the token that is fed."""
KINDS = ("rows", "union", "rotated", "codebook", "no norms", "2 bits", "4 bits", "8 bits")


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("interpreted", [True, False] if torch.cuda.is_available() else [True])
def test_every_case_passes(interpreted: bool) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    if interpreted:
        environment["TRITON_INTERPRET"] = "1"
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "python_functions=case_*"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *words, __file__],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]


def test_importing_takes_no_triton() -> None:
    hidden = "import sys; sys.modules['triton'] = None; sys.modules['triton.language'] = None\n"
    code = "from kvbench.decode import cuda_kernels; assert not cuda_kernels.available()"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    environment.pop("TRITON_INTERPRET", None)
    subprocess.run([sys.executable, "-c", hidden + code], env=environment, check=True)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("kind", ["fp32", "bf16", "fp16"])
def test_the_kernels_compile_for_a_gpu_that_is_not_here(kind: str, tmp_path: Path) -> None:
    # The interpreter takes much that the compiler does not.
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    environment.pop("TRITON_INTERPRET", None)
    code = COMPILING.replace("KIND", kind)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


COMPILING = """
import torch

torch.version.cuda = torch.version.cuda or "12.8"  # or the kernels would not be defined
from kvbench.decode import cuda_kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

TYPES = {"q": "*KIND", "k": "*KIND", "v": "*KIND", "out": "*KIND", "softcap": "fp32"}
TYPES |= {"scaling": "fp32", "sums": "*fp32", "mosts": "*fp32", "totals": "*fp32"}
TYPES |= dict.fromkeys(["at", "counts", "pieces", "segments", "heads", "tails"], "*i64")
FIXED = dict(DIM=64, BLOCK_DIM=64, READERS=16, PIECE=256, BLOCK=32, HALF=16, BLOCK_HALF=16)
FIXED |= dict(REST=32, BLOCK_REST=32, WINDOWED=True, CAPPED=True, HAS_BOOKS=True, HAS_CODES=True)
FIXED |= dict(INTERPRETED=False)
for kernel in (cuda_kernels._append, cuda_kernels._read, cuda_kernels._merge):
    names = [p.name for p in kernel.params]
    types = {n: "constexpr" if n in FIXED else TYPES.get(n, "i32") for n in names}
    fixed = {(i,): FIXED[n] for i, n in enumerate(names) if n in FIXED}
    source = ASTSource(fn=kernel, signature=types, constexprs=fixed)
    assert compile(source, target=GPUTarget("cuda", 80, 32)).asm["cubin"]
"""


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def rotary(turned: int) -> Rotary:
    """A rotation of the first channels, its two halves by other angles."""
    angles = randn(NOW, turned, seed=turned)

    def function(keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        whole = rotate_half(keys[..., :turned], cos, sin)
        return torch.cat([whole, keys[..., turned:]], -1)

    return Rotary(RotaryTable(angles.cos(), angles.sin()), function)


def book(rows: int, dim: int, *, norms: bool, seed: int) -> Written:
    entries = randn(max(1, rows // 3), dim, seed=seed)
    refs = torch.arange(rows, device=DEVICE) * 7 % len(entries)
    kind = torch.uint16 if seed % 2 else torch.int32
    lengths = 0.5 + randn(rows, seed=seed + 1).abs() if norms else None
    return Written(entries, refs.to(kind), lengths)


def bits(rows: int, readers: int) -> Tensor:
    """Members [1, n]; nobody reads some rows."""
    row = torch.arange(rows, device=DEVICE)
    read = sum(((row * (c + 2) % 5 < 3).int() << c for c in range(readers)), torch.zeros_like(row))
    return read.to(torch.uint8 if readers <= 8 else torch.int32)[None]


def segment(kind: str, rows: int, dim: int, readers: int, turned: int, seed: int = 0) -> Any:
    """One head of a segment."""
    k, v = randn(2, 1, rows, dim, seed=seed)
    # Rows keep their old numbers, so some stand beyond the windows of the cases.
    at = torch.arange(NOW - 5 - 3 * rows, NOW - 5, 3, device=DEVICE).clamp(min=0)[None]
    members = bits(rows, readers) if kind in ("union", "codebook") else None
    if kind in ("rows", "union"):
        return PlainRows(k, v, at.int(), members)
    if kind == "rotated":
        return PlainRows(k, v, at.int(), None, rotary(turned))
    if kind in ("codebook", "no norms"):
        books = (book(rows, dim, norms=kind == "codebook", seed=seed + i) for i in range(2))
        return CodebookRows(*books, at[0].to(torch.uint16), rotary(turned), members)
    width, group = int(kind[0]), 7 if rows % 7 == 0 else 1
    keys = k.reshape(1, rows // group, group, dim).transpose(2, 3).reshape(-1, group)
    codes = (packed(x, width) for x in (keys, v.reshape(-1, 8)))
    return QuantizedRows(*codes, (1, rows, dim), group)


def tail(heads: int, count: int, dim: int, seed: int = 0, room: int = 2) -> TailRows:
    """A tail that holds tokens and has room for more."""
    return TailRows(randn(2, heads, count + room, dim, seed=seed + 90), count)


def launched(
    readings: Sequence[Reading], width: int, heads: tuple[int, int], dim: int, rule: AttentionRule
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the kernels say [V, Q, 1, D], and the q, k and v that they were given."""
    q = randn(width, 1, heads[0], dim, seed=70).transpose(1, 2)
    k, v = (randn(width, 1, heads[1], dim, seed=s).transpose(1, 2) for s in (71, 72))
    counts = torch.zeros(width, dtype=torch.int64, device=DEVICE)
    for reading in readings:
        counts[reading.row] = reading.tail.count
        assert cuda_kernels.reads(reading.lane, reading.group)
    out = torch.full_like(q, 7.0)
    at = torch.full_like(counts, NOW)
    cuda_kernels.FlatLaunch(readings).attend(q, k, v, at, counts, rule, out)
    return out, q, k, v


def check(
    readings: Sequence[Reading], width: int, heads: tuple[int, int], dim: int, rule: AttentionRule
) -> Tensor:
    """Compare the kernels with the plain form; rows without a reading are zero."""
    before = {r.row: r.tail.buffer.clone() for r in readings}
    out, q, k, v = launched(readings, width, heads, dim, rule)
    for reading in readings:
        count = reading.tail.count
        expected = before[reading.row]
        expected[:, :, count] = torch.stack([k[reading.row, :, 0], v[reading.row, :, 0]])
        assert torch.equal(reading.tail.buffer, expected)
        whole = replace(reading, tail=TailRows(expected, count + 1))
        mine = q[reading.row, reading.queries]
        twin, _ = attend(whole, mine, torch.tensor([NOW], device=DEVICE), rule)
        torch.testing.assert_close(out[reading.row, reading.queries], twin, atol=1e-5, rtol=0)
    for row in set(range(width)) - set(before):
        assert not out[row].any()
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "size",
    [(1, 0, 16, 1), (7, 1, 64, 3), (63, 17, 16, 4)],
    ids=lambda size: "{} rows, {} in the tail, D {}, g {}".format(*size),
)
def case_each_kind_equals_the_plain_form(kind: str, size: tuple[int, int, int, int]) -> None:
    rows, held, dim, group = size
    lane = (segment(kind, rows, dim, group, dim // 2 if rows == 7 else dim),)
    reading = Reading(1, lane, 0, group, tail(1, held, dim), group)
    rules = [AttentionRule(dim**-0.5)]
    if rows > 1:
        rules.append(AttentionRule(dim**-0.5, sliding_window=40, softcap=3.0))
    for rule in rules:
        check([reading], 3, (group, 1), dim, rule)


def readings_of(
    row: int, lanes: Sequence[Lane], tail: TailRows, query_heads: int, group: int
) -> list[Reading]:
    """Who reads each lane of a row: their heads share the query heads evenly."""
    readers = query_heads // sum(lane[0].heads for lane in lanes)
    firsts = [readers * sum(lane[0].heads for lane in lanes[:i]) for i in range(len(lanes))]
    return [
        Reading(row, lane, first, readers, tail, group)
        for lane, first in zip(lanes, firsts, strict=True)
    ]


def mixed_readings() -> list[Reading]:
    """Rows 0, 2 and 3 of five, of 2 KV heads and 6 query heads: lanes of several kinds."""
    dense = PlainRows(
        *randn(2, 6, 9, 16, seed=1), torch.arange(9, device=DEVICE).expand(6, -1).int()
    )
    lanes_of: dict[int, tuple[Lane, ...]] = {
        0: tuple(
            (segment("codebook", n, 16, 3, 8, n), segment("rows", 5, 16, 3, 8)) for n in (31, 2)
        ),
        2: ((dense,),),
        3: (
            (segment("4 bits", 14, 16, 3, 8), segment("union", 3, 16, 3, 8)),
            (segment("rows", 0, 16, 3, 8), segment("rotated", 90, 16, 3, 8)),
        ),
    }
    return [
        reading
        for row, lanes in lanes_of.items()
        for reading in readings_of(row, lanes, tail(2, row, 16, seed=row), 6, 3)
    ]


def case_mixed_rows_equal_the_plain_form_whatever_is_beside_them() -> None:
    rule = AttentionRule(0.25)
    together = check(mixed_readings(), 5, (6, 2), 16, rule)
    for row in (0, 2, 3):
        alone, *_ = launched([r for r in mixed_readings() if r.row == row], 5, (6, 2), 16, rule)
        assert torch.equal(alone[row], together[row])


@pytest.mark.parametrize("piece", [256, 16], ids="{} rows in a piece".format)
def case_long_rows_are_read_in_pieces(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_kernels, "_PIECE", piece)
    at = torch.arange(600, device=DEVICE).int()[None] * NOW // 600
    rows = PlainRows(*randn(2, 1, 600, 16, seed=3), at, bits(600, 9))
    reading = Reading(0, (rows, segment("codebook", 99, 16, 9, 16)), 0, 9, tail(1, 290, 16), 9)
    for sliding_window in (None, 40):
        check([reading], 1, (9, 1), 16, AttentionRule(0.25, sliding_window))


def stores() -> dict[str, Store]:
    """Stores of 2 KV heads and 4 query heads, made from one prefill."""
    state = random_prefill(120, layers=1, dim=16, distinct=20).layers[0]
    assert state.k_pre is not None and state.rotary is not None
    table = state.rotary.table
    moved = RotaryTable(table.cos.to(DEVICE), table.sin.to(DEVICE))
    layer = replace(
        state,
        k=state.k.to(DEVICE),
        v=state.v.to(DEVICE),
        k_pre=state.k_pre.to(DEVICE),
        rotary=Rotary(moved, rotate_half),
    )
    rng = torch.Generator().manual_seed(0)
    of_query = torch.stack(
        [torch.randperm(112, generator=rng)[:40].sort().values for _ in range(4)]
    )
    of_query, of_kv = of_query.to(DEVICE), of_query[:2].to(DEVICE)
    thetas = {"theta_key": 0.95, "theta_value": 0.95}
    return {
        "rows": store_rows(layer, of_kv),
        "rows per query head": store_rows(layer, of_query),
        "union": store_rows(layer, of_query, union=True),
        "ragged": store_ragged_rows(layer, [of_kv[0], of_kv[1, :7]]),
        "codebook": store_codebook(layer, of_query, 8, **thetas),
        "layer's codebook": store_codebook(layer, of_kv, 8, **thetas, scope="layer"),
        "no magnitudes": store_codebook(layer, of_kv, 0, **thetas, magnitude=False),
        "quantized": store_quantized(layer, 96, 4, 32),
    }


def case_stores_equal_the_plain_form() -> None:
    readings: list[Reading] = []
    held = stores()
    for row, store in enumerate(held.values()):
        readings += readings_of(row, store.segments(), tail(2, 3, 16, seed=row), 4, 2)
    check(readings, len(held), (4, 2), 16, AttentionRule(0.25, softcap=5.0))


def case_steps_follow_one_another_on_the_same_tables() -> None:
    readings = mixed_readings()
    rows = {r.row: r.tail for r in readings}
    launch = cuda_kernels.FlatLaunch(readings)
    counts, at = (torch.zeros(5, dtype=torch.int64, device=DEVICE) for _ in range(2))
    for row, held in rows.items():
        counts[row] = held.count
    at += NOW
    for step in range(2):
        q, k, v = randn(3, 5, 6, 1, 16, seed=step)
        out = torch.empty_like(q)
        launch.attend(q, k[:, :2], v[:, :2], at, counts, AttentionRule(0.25), out)
        counts += 1
        at += 1
        for held in rows.values():
            held.count += 1
        for reading in readings:
            twin, _ = attend(
                reading, q[reading.row, reading.queries], at[:1] - 1, AttentionRule(0.25)
            )
            mine = out[reading.row, reading.queries]
            torch.testing.assert_close(mine, twin, atol=1e-5, rtol=0)


def case_a_row_that_is_not_fed_is_left_as_it_is() -> None:
    full = Reading(0, (segment("rows", 3, 16, 1, 16),), 0, 1, tail(1, 4, 16, room=0), 1)
    never = TailRows(torch.empty(2, 0, 0, 0, device=DEVICE))
    joined = Reading(1, (segment("rows", 3, 16, 1, 16),), 0, 1, never, 1)
    fed = Reading(2, (segment("rows", 3, 16, 1, 16),), 0, 1, tail(1, 2, 16), 1)
    before = full.tail.buffer.clone()
    rule = AttentionRule(0.25)
    together, *_ = launched([full, joined, fed], 3, (1, 1), 16, rule)
    assert torch.equal(full.tail.buffer, before)
    assert together.isfinite().all()
    fed = replace(fed, tail=tail(1, 2, 16))
    alone, *_ = launched([fed], 3, (1, 1), 16, rule)
    assert torch.equal(alone[2], together[2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["rows", "rotated", "codebook", "4 bits"])
def case_shorter_numbers_stay_near_the_plain_form(kind: str, dtype: torch.dtype) -> None:
    one = shortened(segment(kind, 63, 32, 3, 16), dtype)
    held = TailRows(tail(1, 5, 32).buffer.to(dtype), 5)
    reading = Reading(0, (one,), 0, 3, held, 3)
    q, k, v = (randn(1, n, 1, 32, seed=n).to(dtype) for n in (3, 1, 1))
    counts, at = (torch.full((1,), n, device=DEVICE) for n in (5, NOW))
    out = torch.empty_like(q)
    assert cuda_kernels.reads(reading.lane, 3)
    rule = AttentionRule(32**-0.5)
    cuda_kernels.FlatLaunch([reading]).attend(q, k, v, at, counts, rule, out)
    held.count += 1
    twin, _ = attend(reading, q[0], at, rule)
    torch.testing.assert_close(out[0], twin, atol=TOLERANCE[torch.bfloat16], rtol=0)


def shortened(held: Any, dtype: torch.dtype) -> Any:
    """The same with every float32 in another type."""
    if isinstance(held, Tensor):
        return held.to(dtype) if held.dtype == torch.float32 else held
    if isinstance(held, RotaryTable):
        return RotaryTable(held.cos.to(dtype), held.sin.to(dtype))
    if is_dataclass(held) and not isinstance(held, type):
        parts = {f.name: shortened(getattr(held, f.name), dtype) for f in fields(held)}
        return replace(held, **parts)
    return held


def interleaved(keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """A rotation of neighboring channels, as some families have it."""
    turned = torch.stack([-keys[..., 1::2], keys[..., ::2]], -1).flatten(-2)
    return keys * cos[:, None] + turned * sin[:, None]


@pytest.mark.parametrize(
    "refused",
    ["another rotation", "other numbers", "too many readers", "a transposed row", "odd vectors"],
)
def test_what_the_kernels_cannot_read_is_refused(refused: str) -> None:
    rows = segment("rows", 7, 16, 3, 16)
    assert cuda_kernels.reads((rows,), 3)
    group = 3
    if refused == "another rotation":
        turned = Rotary(rotary(16).table, interleaved)
        rows = replace(segment("rotated", 7, 16, 3, 16), rotary=turned)
    elif refused == "other numbers":
        rows = replace(rows, k=rows.k.double())
    elif refused == "too many readers":
        group = 32
    elif refused == "a transposed row":
        rows = replace(rows, v=rows.v.mT.contiguous().mT)
    else:
        rows = segment("rows", 7, 12, 3, 12)
    assert not cuda_kernels.reads((rows,), group)
