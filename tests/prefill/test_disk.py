"""Prefills on disk: the same tensors come back, damage is noticed, the folder stays bounded."""

from __future__ import annotations

import hashlib
import os
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kvbench.methods.kvzip import KVzip
from kvbench.prefill import capture as capturing
from kvbench.prefill.disk import PrefillCache, PrefillFolder
from kvbench.prefill.needs import Needs
from kvbench.prefill.pruning import PruningSchedule
from kvbench.prefill.state import LayerState

IDS = torch.arange(90) % 256
EVERYTHING = Needs(
    window=7,
    pre_rope_keys=True,
    column_sums=True,
    last_block_sums=frozenset({8, 32}),
    query_statistics=frozenset({0, 4}),
    template_prefix=True,
    reconstructions=KVzip().needs.reconstructions,
)


@pytest.fixture
def prefills(monkeypatch: pytest.MonkeyPatch) -> list[Needs]:
    """The needs of every real prefill."""
    counted: list[Needs] = []
    real = capturing.capture

    def counting(model, ids, needs, plan=None):
        counted.append(needs)
        return real(model, ids, needs, plan)

    monkeypatch.setattr("kvbench.prefill.disk.capture", counting)
    return counted


def _cache(tmp_path: Path, limit: int = 2**30) -> PrefillCache:
    return PrefillCache(PrefillFolder(tmp_path / "prefills", limit))


def _entries(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "prefills").iterdir())


def _assert_same_layer(one: LayerState, other: LayerState) -> None:
    for field in fields(LayerState):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, torch.Tensor):
            assert torch.equal(a, b), field.name
        elif field.name in ("reconstructions", "last_block_sums"):
            assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
        elif field.name == "query_statistics":
            assert a.keys() == b.keys()
            assert all(torch.equal(a[k].mean, b[k].mean) for k in a)
            assert all(torch.equal(a[k].covariance, b[k].covariance) for k in a)
        elif field.name == "rotary" and a is not None:
            keys, at = one.k_pre[:, :5], torch.arange(5).expand(one.kv_heads, -1)
            assert torch.equal(a.rotate(keys, at), b.rotate(keys, at))
        else:
            assert a == b, field.name


def test_what_comes_from_disk_is_what_was_captured(tiny, tmp_path, prefills):
    made = _cache(tmp_path).capture(tiny, IDS, EVERYTHING)
    read = _cache(tmp_path).capture(tiny, IDS, EVERYTHING)
    assert len(prefills) == 1
    assert torch.equal(made.last_logits, read.last_logits)
    assert made.template_tokens == read.template_tokens
    assert made.repetitions == read.repetitions and len(made.repetitions) == 1
    for one, other in zip(made.layers, read.layers, strict=True):
        _assert_same_layer(one, other)


def test_a_pruning_prefill_is_kept_as_well(tiny, tmp_path, prefills):
    layers = tiny.geometry.layers
    plan = PruningSchedule(context=(80, *(40,) * (layers - 1)), tail=10)
    made = _cache(tmp_path).capture(tiny, IDS, Needs(), plan)
    read = _cache(tmp_path).capture(tiny, IDS, Needs(), plan)
    assert len(prefills) == 1
    for one, other in zip(made.layers, read.layers, strict=True):
        _assert_same_layer(one, other)


def test_tomorrows_window_method_needs_no_prefill(tiny, tmp_path, prefills):
    _cache(tmp_path).capture(tiny, IDS, Needs())
    assert _cache(tmp_path).capture(tiny, IDS, Needs(window=32)).layers[0].q_win.shape[1] >= 32
    assert len(prefills) == 1


def test_an_entry_that_lacks_something_is_replaced_by_one_that_has_both(tiny, tmp_path, prefills):
    _cache(tmp_path).capture(tiny, IDS, Needs(column_sums=True))
    _cache(tmp_path).capture(tiny, IDS, Needs(pre_rope_keys=True))
    assert len(prefills) == 2
    assert len(_entries(tmp_path)) == 1
    both = _cache(tmp_path).capture(tiny, IDS, Needs(pre_rope_keys=True, column_sums=True))
    assert len(prefills) == 2
    assert both.layers[0].k_pre is not None and both.layers[0].column_sums is not None


def test_another_prompt_is_another_entry(tiny, tmp_path, prefills):
    _cache(tmp_path).capture(tiny, IDS, Needs())
    _cache(tmp_path).capture(tiny, IDS[:-1], Needs())
    assert len(prefills) == len(_entries(tmp_path)) == 2


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty"])
def test_a_damaged_entry_is_computed_again(tiny, tmp_path, prefills, damage):
    made = _cache(tmp_path).capture(tiny, IDS, Needs())
    (path,) = _entries(tmp_path)
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    left = {"flipped": bytes(content), "cut": bytes(content[:-9]), "empty": b""}[damage]
    path.write_bytes(left)
    again = _cache(tmp_path).capture(tiny, IDS, Needs())
    assert len(prefills) == 2
    assert torch.equal(made.layers[-1].v, again.layers[-1].v)
    _cache(tmp_path).capture(tiny, IDS, Needs())
    assert len(prefills) == 2, "what replaced it is whole"


def test_the_folder_is_bounded_and_the_longest_unused_goes_first(tiny, tmp_path, prefills):
    first = _cache(tmp_path)
    first.capture(tiny, IDS, Needs())
    (one,) = _entries(tmp_path)
    os.utime(one, (1, 1))
    first.capture(tiny, IDS + 1, Needs())
    size = max(p.stat().st_size for p in _entries(tmp_path))
    small = _cache(tmp_path, limit=2 * size)
    small.capture(tiny, IDS + 2, Needs())
    assert len(_entries(tmp_path)) == 2
    assert one not in _entries(tmp_path)


def test_files_that_are_no_entries_are_never_deleted(tiny, tmp_path, prefills):
    (tmp_path / "prefills").mkdir()
    weights = tmp_path / "prefills" / "model-00001-of-00002.safetensors"
    weights.write_bytes(b"x" * 10_000)
    os.utime(weights, (1, 1))
    _cache(tmp_path, limit=1).capture(tiny, IDS, Needs())
    assert _entries(tmp_path) == [weights]


@pytest.mark.parametrize("facts", ["[]", "{}", '{"layers": [{}], "needs": {}}', "[" * 9000, "3"])
def test_an_entry_of_another_shape_is_computed_again(tiny, tmp_path, prefills, facts):
    _cache(tmp_path).capture(tiny, IDS, Needs())
    (entry,) = _entries(tmp_path)
    key = entry.name.partition("-")[0]
    entry.unlink()
    made = tmp_path / "made"
    save_file({"last_logits": torch.zeros(3)}, made, {"prefill": facts})
    digest = hashlib.blake2b(made.read_bytes(), digest_size=16).hexdigest()
    made.rename(tmp_path / "prefills" / f"{key}-{digest}.safetensors")
    _cache(tmp_path).capture(tiny, IDS, Needs())
    assert len(prefills) == 2
    assert _entries(tmp_path) == [entry]


def test_a_disk_that_refuses_ends_the_keeping_and_not_the_run(tiny, tmp_path, caplog):
    blocked = tmp_path / "prefills"
    blocked.write_text("a file where the folder should be")
    cache = _cache(tmp_path)
    for _ in range(2):
        assert cache.capture(tiny, IDS, Needs()).tokens == len(IDS)
    assert caplog.text.count("no longer kept") == 1
    assert len(caplog.records) == 1
