from __future__ import annotations

import sys
import threading
import weakref
from dataclasses import replace
from subprocess import run

import numpy as np
import pytest
import torch
from torch import Tensor

from kvbench.cache.quantized import channel_group, packed
from kvbench.cache.segments import CodebookRows, PlainRows, QuantizedRows, Written
from kvbench.cache.store import Lane
from kvbench.compress.budget import Budget
from kvbench.decode import cpu_kernels
from kvbench.decode.cpu_kernels import FlatLaunch, reads
from kvbench.decode.reading import Reading, TailRows, attend
from kvbench.methods.adakv import AdaKV
from kvbench.methods.quantized import Quantized
from kvbench.methods.snapkv import SnapKV
from kvbench.methods.spindlekv import SpindleKV
from kvbench.model.attention import AttentionRule
from kvbench.model.rotary import Rotary, RotaryTable
from support.naive import random_prefill, rotate_half

pytest.importorskip("numba", reason="the CPU kernels are compiled by numba (kvbench[fast])")

KV_HEADS = 2
MOST = 20  # rows that a tail has room for


class Maker:
    """Random lanes of one shape."""

    def __init__(self, dim: int, group: int, seed: int = 0, turned: int | None = None) -> None:
        self.dim, self.group = dim, group
        self.rng = torch.Generator().manual_seed(seed)
        turned = dim if turned is None else turned

        def partly(keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
            some, rest = keys[..., :turned], keys[..., turned:]
            return torch.cat([rotate_half(some, cos, sin), rest], -1)

        angles = torch.arange(600)[:, None] * 10000.0 ** (-torch.arange(turned // 2) * 2 / turned)
        # A YaRN table is scaled.
        cos, sin = (1.3 * x.repeat(1, 2) for x in (angles.cos(), angles.sin()))
        self.rotary = Rotary(RotaryTable(cos, sin), partly)

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.rng)

    def positions(self, heads: int, n: int) -> Tensor:
        rows = [torch.randperm(600, generator=self.rng)[:n].sort().values for _ in range(heads)]
        return torch.stack(rows).to(torch.int32)

    def members(self, heads: int, n: int) -> Tensor:
        bits = torch.randint(1, 2**self.group, (heads, n), generator=self.rng)
        return bits.to(torch.uint8)

    def rows(self, heads: int, n: int, *, union: bool = False, turn: bool = False) -> PlainRows:
        return PlainRows(
            # Captured rows may be part of longer ones.
            self.randn(heads, n + 3, self.dim)[:, 1 : n + 1],
            self.randn(heads, n, self.dim),
            self.positions(heads, n),
            self.members(heads, n) if union else None,
            self.rotary if turn else None,
        )

    def book(self, n: int, *, norms: bool, wide: bool) -> Written:
        entries = max(1, n // 2)
        refs = torch.randint(entries, (n,), generator=self.rng)
        return Written(
            self.randn(entries, self.dim),
            refs.to(torch.int32 if wide else torch.uint16),
            self.randn(n).abs() if norms else None,
        )

    def codebook(
        self, n: int, *, union: bool = True, norms: bool = True, wide: bool = False
    ) -> CodebookRows:
        return CodebookRows(
            self.book(n, norms=norms, wide=wide),
            self.book(n, norms=norms, wide=not wide),
            self.positions(1, n)[0].to(torch.int32 if wide else torch.uint16),
            self.rotary,
            self.members(1, n) if union else None,
        )

    def quantized(self, heads: int, n: int, bits: int, group: int) -> QuantizedRows:
        n = -(-n // group) * group
        keys = self.randn(heads * n // group * self.dim, group)
        values = self.randn(heads * n * self.dim).view(-1, channel_group(self.dim, group))
        shape = (heads, n, self.dim)
        return QuantizedRows(packed(keys, bits), packed(values, bits), shape, group)

    def readings(self, row: int, lanes: list[Lane], held: int) -> list[Reading]:
        """Who reads the lanes of all heads, G or Q of them."""
        tail = TailRows(self.randn(2, KV_HEADS, MOST, self.dim), held)
        heads = [len(lane[0].positions) for lane in lanes]
        readers = KV_HEADS * self.group // sum(heads)
        firsts = np.cumsum([0, *heads]) * readers
        return [
            Reading(row, lane, int(first), readers, tail, self.group)
            for lane, first in zip(lanes, firsts, strict=False)
        ]


class Step:
    """One token of every row of a batch, by the kernels and by the torch reference."""

    def __init__(
        self, make: Maker, readings: list[Reading], rule: AttentionRule, rows: int = 1
    ) -> None:
        self.readings, self.rule, group = readings, rule, make.group
        self.q = make.randn(rows, KV_HEADS * group, 1, make.dim)
        self.k, self.v = (make.randn(rows, 1, KV_HEADS, make.dim).transpose(1, 2) for _ in range(2))
        self.at = torch.tensor([600 + 5 * row for row in range(rows)])
        self.counts = np.zeros(rows, np.int64)
        for reading in readings:
            self.counts[reading.row] = reading.tail.count

    def launched(self, launch: FlatLaunch | None = None) -> Tensor:
        out = torch.full(self.q.shape, torch.nan)
        launch = launch or FlatLaunch(self.readings)
        launch.attend(self.q, self.k, self.v, self.at, self.counts, self.rule, out)
        return out

    def expected(self) -> Tensor:
        out = torch.zeros_like(self.q)
        for tail, row in {id(r.tail): (r.tail, r.row) for r in self.readings}.values():
            tail.buffer[0, :, tail.count] = self.k[row, :, 0]
            tail.buffer[1, :, tail.count] = self.v[row, :, 0]
            tail.count += 1
        for reading in self.readings:
            q = self.q[reading.row, reading.queries]
            at = self.at[reading.row : reading.row + 1]
            out[reading.row, reading.queries] = attend(reading, q, at, self.rule)[0]
        return out

    def check(self) -> None:
        buffers = [r.tail.buffer.clone() for r in self.readings]
        found = self.launched()
        written = [r.tail.buffer.clone() for r in self.readings]
        for reading, before in zip(self.readings, buffers, strict=True):
            assert reading.tail.buffer.shape == before.shape
            reading.tail.buffer.copy_(before)
        torch.testing.assert_close(found, self.expected(), atol=1e-5, rtol=1e-5)
        for reading, mine in zip(self.readings, written, strict=True):
            assert torch.equal(reading.tail.buffer, mine)


def lanes_of(make: Maker, kind: str, n: int) -> list[Lane]:
    """Lanes of all heads that hold about n rows of a kind, and a few plain rows behind."""
    heads = KV_HEADS
    recent = make.rows(1, 3)
    if kind == "rows":
        return [(make.rows(heads, n),)]
    if kind == "rows per query head":
        return [(make.rows(1, n + i),) for i in range(heads * make.group)]
    if kind == "rotated":
        return [(make.rows(heads, n, turn=True),)]
    if kind == "union":
        return [(make.rows(1, n + i, union=True), recent) for i in range(heads)]
    if kind == "rotated union":
        return [(make.rows(heads, n, union=True, turn=True),)]
    if kind == "codebook":
        return [(make.codebook(n + i), recent) for i in range(heads)]
    if kind == "codebook of all readers":
        return [(make.codebook(n, union=False, wide=True), make.rows(1, 0))] * heads
    if kind == "codebook without norms":
        return [(make.codebook(n, norms=False),) for _ in range(heads)]
    bits = int(kind.split()[1])
    group = 24 if kind.endswith("odd") else 32
    return [(make.quantized(heads, n, bits, group), make.rows(heads, 5))]


KINDS = [
    "rows",
    "rows per query head",
    "rotated",
    "union",
    "rotated union",
    "codebook",
    "codebook of all readers",
    "codebook without norms",
    "quantized 2",
    "quantized 4",
    "quantized 8",
    "quantized 4 odd",
]
RULES = {
    "plain": AttentionRule(0.2),
    "window": AttentionRule(0.2, sliding_window=300),
    "narrow": AttentionRule(0.2, sliding_window=9),
    "softcap": AttentionRule(0.8, softcap=2.0),
    "both": AttentionRule(0.3, sliding_window=200, softcap=20.0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_rows_is_read_as_the_reference_reads_it(kind: str) -> None:
    make = Maker(16, 3)
    for n in (1, 7, 63, 257):
        for held in (0, 1, 17):
            lanes = lanes_of(make, kind, n)
            assert all(reads(lane, make.group) for lane in lanes)
            Step(make, make.readings(0, lanes, held), RULES["plain"]).check()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_windows_and_softcaps_are_kept_to(kind: str, rule: AttentionRule) -> None:
    make = Maker(16, 3)
    for held in (0, 17):
        Step(make, make.readings(0, lanes_of(make, kind, 130), held), rule).check()


@pytest.mark.parametrize(
    ("kind", "dim", "group", "turned"),
    [
        ("rows", 80, 5, 80),
        ("codebook", 64, 3, 64),
        ("codebook", 80, 1, 32),
        ("rotated union", 24, 8, 12),
        ("quantized 4", 64, 4, 64),
        ("quantized 2", 24, 1, 24),
    ],
)
def test_other_shapes_and_partial_rotations_agree(
    kind: str, dim: int, group: int, turned: int
) -> None:
    make = Maker(dim, group, turned=turned)
    Step(make, make.readings(0, lanes_of(make, kind, 100), 5), RULES["both"]).check()


def batch(make: Maker, kinds: list[str]) -> list[list[Reading]]:
    return [
        make.readings(row, lanes_of(make, kind, 40 + 30 * row), row)
        for row, kind in enumerate(kinds)
    ]


def test_a_batch_of_all_kinds_agrees() -> None:
    make = Maker(16, 3)
    readings = [reading for row in batch(make, KINDS) for reading in row]
    Step(make, readings, RULES["window"], len(KINDS)).check()


def test_a_row_does_not_depend_on_its_neighbors() -> None:
    make = Maker(16, 3)
    rows = batch(make, KINDS)
    step = Step(make, [reading for row in rows for reading in row], RULES["both"], len(rows))
    together = step.launched()
    for row, alone in enumerate(rows):
        assert torch.equal(step.launched(FlatLaunch(alone))[row], together[row])
    backwards = FlatLaunch([reading for row in reversed(rows) for reading in row])
    assert torch.equal(step.launched(backwards), together)


def test_idle_rows_are_zero() -> None:
    make = Maker(16, 3)
    readings = make.readings(1, lanes_of(make, "union", 20), 2)
    step = Step(make, readings, RULES["plain"], 3)
    found = step.launched()
    assert not found[[0, 2]].any()
    assert found[1].any()
    assert not step.launched(FlatLaunch([])).any()
    step.check()


def test_a_launch_takes_over_what_the_one_before_found() -> None:
    make = Maker(16, 3)
    rows = batch(make, KINDS)
    step = Step(make, [reading for row in rows for reading in row], RULES["both"], len(rows))
    FlatLaunch([reading for row in rows[:-2] for reading in row])
    fewer = [reading for row in rows[2:] for reading in row]

    def afresh() -> FlatLaunch:
        return FlatLaunch([replace(reading) for reading in fewer])

    assert torch.equal(step.launched(FlatLaunch(fewer)), step.launched(afresh()))
    tail = fewer[0].tail
    tail.buffer = torch.cat([tail.buffer, tail.buffer], 2)
    assert torch.equal(step.launched(FlatLaunch(fewer)), step.launched(afresh()))


def test_what_nobody_reads_any_more_is_freed() -> None:
    make = Maker(16, 3)
    readings = make.readings(0, lanes_of(make, "codebook", 20), 2)
    held = weakref.ref(readings[0].lane[0])
    launch = FlatLaunch(readings)
    del readings
    assert held() is not None, "what a launch reads it keeps alive"
    del launch
    assert held() is None


def test_tables_that_were_replaced_are_kept() -> None:
    make = Maker(16, 3)
    step = Step(make, make.readings(0, lanes_of(make, "rotated", 50), 2), RULES["plain"])
    expected = step.launched()
    launch = FlatLaunch(step.readings)
    table = make.rotary.table
    more = torch.ones(4000, 16)
    table.cover(len(table.cos), more, more)
    trash = [torch.full((600, 16), 7.0) for _ in range(50)]
    assert torch.equal(step.launched(launch), expected)
    assert trash


def test_a_step_can_be_repeated() -> None:
    make = Maker(16, 3)
    step = Step(make, make.readings(0, lanes_of(make, "codebook", 20), 2), RULES["plain"])
    launch = FlatLaunch(step.readings)
    assert torch.equal(step.launched(launch), step.launched(launch))


def test_threads_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    make = Maker(16, 3)
    readings = [reading for row in batch(make, KINDS) for reading in row]
    step = Step(make, readings, RULES["window"], len(KINDS))
    launch = FlatLaunch(readings)
    monkeypatch.setattr(cpu_kernels, "_WORTH_A_THREAD", 1000)
    expected = None
    for threads in (1, 2, 5):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert len(launch._shares(step.counts)) == threads
        found = step.launched(launch)
        expected = found if expected is None else expected
        assert torch.equal(found, expected)


def test_two_threads_may_attend_at_once() -> None:
    make = Maker(16, 3)
    steps = [
        Step(make, make.readings(0, lanes_of(make, kind, 257), 3), RULES["plain"])
        for kind in ("codebook", "quantized 4")
    ]
    expected = [step.launched() for step in steps]
    wrong: list[int] = []

    def work(which: int) -> None:
        launch = FlatLaunch(steps[which].readings)
        for _ in range(300):
            if not torch.equal(steps[which].launched(launch), expected[which]):
                wrong.append(which)

    threads = [threading.Thread(target=work, args=(which,)) for which in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    "method",
    [
        SnapKV(heads="query", store="union"),
        SnapKV(),
        AdaKV(base=SnapKV()),
        SpindleKV(),
        SpindleKV(heads="kv", scope="layer"),
        Quantized(bits=4),
    ],
    ids=lambda method: type(method).__name__,
)
def test_the_stores_of_methods_are_read_as_they_lie(method: object) -> None:
    prefill = random_prefill(200, layers=2, query_heads=6, kv_heads=KV_HEADS, dim=16, distinct=40)
    make = Maker(16, 3)
    for store in method.compress(prefill, Budget.parse(0.5)).layers:
        lanes = list(store.segments())
        assert all(reads(lane, 3) for lane in lanes)
        Step(make, make.readings(0, lanes, 4), RULES["plain"]).check()


def test_what_the_kernels_do_not_know_is_left_to_the_reference() -> None:
    make = Maker(16, 3)
    rows, book = make.rows(2, 9, union=True), make.codebook(9)
    assert reads((rows,), 3)
    assert not reads((replace(rows, k=rows.k.bfloat16(), v=rows.v.bfloat16()),), 3)
    assert not reads((replace(rows, readers=rows.readers.int()),), 3)
    assert not reads((replace(rows, v=rows.v.transpose(1, 2).contiguous().transpose(1, 2)),), 3)
    assert not reads((rows,), 17)
    assert not reads((make.quantized(1, 30, 2, 3),), 3)

    def pairs(keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned = torch.stack([-keys[..., 1::2], keys[..., ::2]], -1).flatten(-2)
        return keys * cos[:, None] + turned * sin[:, None]

    assert reads((book,), 3)
    assert not reads((replace(book, rotary=replace(book.rotary, function=pairs)),), 3)
    other = replace(rows, rotary=Maker(16, 3, turned=8).rotary)
    assert reads((other,), 3)
    assert not reads((book, other), 3)


def test_numba_is_imported_when_a_launch_is_built() -> None:
    code = (
        "import sys, kvbench.decode.cpu_kernels as k; print(k.available(), 'numba' in sys.modules)"
    )
    printed = run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["True", "False"]
