"""Byte estimates, sizes as users write them, and runs under a byte limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kvbench.api import run_words
from kvbench.base.errors import UserError
from kvbench.base.sizes import parsed_bytes, shown_bytes
from kvbench.compress.budget import Budget
from kvbench.methods.streamingllm import StreamingLLM
from kvbench.model.loading import wrap
from kvbench.prefill.capture import capture
from kvbench.prefill.needs import Needs
from kvbench.prefill.state import Prefill
from kvbench.records.reader import distinct, read_shards
from kvbench.run.caches import shared_prefill
from kvbench.run.memory import (
    Bytes,
    bytes_held,
    bytes_to_take,
    decode_bytes,
    prefill_bytes,
    times_in,
)
from support.cli import one_line
from support.methods import CHOICES


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GiB", 8 * 2**30), ("500M", 500 * 2**20), ("1.5 KB", 1536), (4096, 4096), (None, None)],
)
def test_a_size_is_read_as_users_write_it(text, size):
    assert parsed_bytes("memory", text) == size


@pytest.mark.parametrize("text", ["much", "-1GiB", "0", "8 PB", True, "GiB"])
def test_what_is_no_size_is_one_line(text):
    with pytest.raises(UserError) as refused:
        parsed_bytes("memory", text)
    assert f"memory={text}" in one_line(refused)


@pytest.mark.parametrize(
    ("size", "text"),
    [(17, "17 bytes"), (2048, "2.0 KiB"), (3 * 2**29, "1.5 GiB"), (2**41, "2048.0 GiB")],
)
def test_a_size_is_shown_in_the_unit_that_fits(size, text):
    assert shown_bytes(size) == text


def _held(prefill: Prefill) -> int:
    """Bytes of every tensor of a capture, each counted once."""
    tensors = [prefill.last_logits]
    for s in prefill.layers:
        tensors += [s.k, s.v, s.q_win, s.k_pre, s.column_sums, *s.reconstructions.values()]
        tensors += s.last_block_sums.values()
        tensors += [t for m in s.query_statistics.values() for t in (m.mean, m.covariance)]
    return sum(t.nbytes for t in tensors if t is not None)


@pytest.mark.parametrize(
    "needs",
    [
        Needs(),
        Needs(window=32),
        Needs(window=8, pre_rope_keys=True, column_sums=True),
        Needs(query_statistics=frozenset({4})),
        Needs(last_block_sums=frozenset({8, 32})),
    ],
    ids=str,
)
def test_a_prefill_is_estimated_above_what_it_keeps_and_within_one_layers_activations(tiny, needs):
    tokens = 257
    kept = _held(capture(tiny, torch.arange(tokens) % 256, needs))
    config = tiny.network.config
    passing = 4 * tokens * (2 * config.hidden_size + 3 * config.intermediate_size)
    passing += 12 * 128 * tiny.geometry.query_heads * tokens * (
        needs.column_sums or bool(needs.last_block_sums)
    )
    logits = 4 * config.vocab_size
    g = tiny.geometry
    remembered = 4 * g.layers * g.kv_heads * tokens * g.head_dim // 5 * needs.pre_rope_keys
    assert kept - logits < prefill_bytes(tiny, tokens, needs).total() - remembered <= kept + passing


GPUS = tuple(torch.device("cuda", i) for i in (0, 1))


@pytest.fixture
def spread(tiny):
    """The random Llama with one layer on one GPU and two on another, as far as memory is asked."""
    model = wrap(tiny.network, tiny.tokenizer, tiny.spec, tiny.identity)
    model.__dict__["layer_devices"] = (GPUS[0], GPUS[1], GPUS[1])
    return model


def test_every_device_is_asked_for_its_memory(spread, monkeypatch):
    free = {None: 0, GPUS[0]: 10_000, GPUS[1]: 2_000}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda d: (free[d], 0))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda d: 500)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda d: 300)
    room = bytes_to_take(spread)
    assert (room[GPUS[0]], room[GPUS[1]]) == (9180, 1980)
    stated = bytes_to_take(spread, 777)
    assert (stated[GPUS[0]], stated[GPUS[1]]) == (777, 777)


def test_what_is_kept_is_weighed_where_its_layer_lies(tiny, spread):
    ids = torch.arange(100) % 256
    needs = Needs(window=8)
    prefill = capture(tiny, ids, needs)
    whole, parts = bytes_held(prefill, tiny).total(), bytes_held(prefill, spread)
    cpu, logits = spread.device, prefill.last_logits.nbytes
    assert parts == Bytes(
        {cpu: logits, GPUS[0]: (whole - logits) // 3, GPUS[1]: 2 * (whole - logits) // 3}
    )
    cache = StreamingLLM().compress(prefill, Budget(fraction=0.5))
    whole, parts = decode_bytes(cache, 10, tiny).total(), decode_bytes(cache, 10, spread)
    assert parts.total() == whole and parts[GPUS[1]] == 2 * parts[GPUS[0]]
    # Activations pass through every device; what is kept of a layer stays on its own.
    one, two = (prefill_bytes(spread, n, needs) for n in (100, 200))
    alone = prefill_bytes(tiny, 100, needs)[cpu] - one[cpu]
    assert one[GPUS[1]] - one[cpu] == pytest.approx(alone * 2 / 3, abs=1)
    assert one[GPUS[0]] - one[cpu] == pytest.approx(alone / 3, abs=1)
    assert all(two[device] > one[device] for device in spread.devices)


def test_the_device_that_runs_out_first_is_the_limit(spread):
    ids = torch.arange(100) % 256
    needed = prefill_bytes(spread, 100, Needs())
    assert shared_prefill(spread, ids, [], None, room=needed).tokens == 100
    for short in spread.devices:
        room = needed - Bytes({short: 1})
        with pytest.raises(MemoryError, match=f"needs about .* on {short}, .* may be taken"):
            shared_prefill(spread, ids, [], None, room=room)
    assert times_in(Bytes({GPUS[0]: 100, GPUS[1]: 30}), [Bytes({GPUS[0]: 9, GPUS[1]: 10})]) == 3


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A short and a long record of one task."""
    folder = tmp_path / "data"
    folder.mkdir()
    lines = []
    for i, days in enumerate((4, 16)):
        story = " ".join(f"On day {d} the clerk wrote {d * i}." for d in range(days))
        asked = {"input": "What?", "context": story, "answers": ["9"], "all_classes": None}
        told = {"_id": str(i), "length": 9, "dataset": "qasper", "language": "en"}
        lines.append(json.dumps({**asked, **told}))
    (folder / "qasper.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def _records(data: Path, out: Path, *words: str) -> dict[tuple[str, str], object]:
    base = ["model=tiny-random", "model.device=cpu", f"data={data}", f"out={out}", "task=qasper"]
    try:
        run_words([*base, "method=snapkv,streamingllm,adakv", "budget=0.5,0.7,0.9", *words])
    except SystemExit as ended:
        assert ended.code == 1
    return {(r.variant, r.sample): r for _, r in distinct(read_shards(out))}


@pytest.mark.slow
def test_a_byte_limit_splits_the_batch_and_changes_no_answer(data, tmp_path):
    whole = _records(data, tmp_path / "whole")
    split = _records(data, tmp_path / "split", "memory=4500KiB")
    assert whole.keys() == split.keys()
    for key, record in whole.items():
        assert record.error is None and split[key].error is None
        assert record.prediction == split[key].prediction
        assert record.decode_width == split[key].decode_width == 16


def test_a_sample_that_does_not_fit_is_recorded_with_its_size_and_the_run_goes_on(data, tmp_path):
    found = _records(data, tmp_path / "run", "memory=3MiB")
    assert all(r.error is None for (_, sample), r in found.items() if sample == "0")
    for (_, sample), record in found.items():
        if sample == "1":
            assert record.error.startswith(f"prefill of {record.prefill_tokens} tokens: out of mem")
            assert "3.0 MiB may be taken" in record.error


UNDER_A_LIMIT = """
import resource, sys
from pathlib import Path
from kvbench.api import run_words

out, data, memory, spare, choices = sys.argv[1:]
shape = ["layers=6", "query_heads=6", "kv_heads=2", "head_dim=64"]
words = ["model=tiny-random", "model.device=cpu", *(f"model.random.{x}" for x in shape)]
words += [f"method={choices}", "budget=0.3", "protocol.max_new_tokens=24", "decode.width=64"]
words += [f"data={data}", "task=qasper"]
# What is loaded, compiled or reserved once is none of what is bounded.
run_words([*words, f"out={out}-before", "limit=1"])
status = Path("/proc/self/status").read_text()
taken = next(int(x.split()[1]) for x in status.splitlines() if x.startswith("VmData"))
most = 1024 * taken + int(memory) + int(spare)
resource.setrlimit(resource.RLIMIT_DATA, (most, resource.RLIM_INFINITY))
bounded = [] if out.endswith("unbounded") else [f"memory={memory}"]
try:
    run_words([*words, f"out={out}", *bounded])
except SystemExit:
    pass
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_a_bounded_sweep_of_every_method_stays_below_a_hard_limit(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    lines = []
    for i in range(3):
        story = " ".join(f"On day {d} the clerk wrote {d * i}." for d in range(50))
        asked = {"input": "What?", "context": story, "answers": ["9"], "all_classes": None}
        told = {"_id": str(i), "length": 9, "dataset": "qasper", "language": "en"}
        lines.append(json.dumps({**asked, **told}))
    (folder / "qasper.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    memory, spare = 88 * 2**20, 40 * 2**20

    def failures(name: str) -> dict[str, str | None]:
        out = tmp_path / name
        sizes = (str(memory), str(spare))
        words = [sys.executable, "-c", UNDER_A_LIMIT, str(out), str(folder), *sizes]
        # What is freed goes back to the system, so that what is taken is what is held.
        allocator = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **allocator}
        done = subprocess.run(
            [*words, ",".join(CHOICES)], env=environment, capture_output=True, text=True
        )
        assert out.exists(), done.stderr[-3000:]
        records = [r for _, r in distinct(read_shards(out))]
        assert len(records) == 3 * (1 + len([c for c in CHOICES if c != "fullkv"]))
        return {f"{r.variant} {r.sample}": r.error for r in records if r.error is not None}

    assert failures("bounded") == {}
    assert any("memory" in str(told) for told in failures("unbounded").values()), "it does bind"
