"""What is held while decoding, summed over every tensor that is alive, against what is claimed."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch

from kvbench.compress.budget import Budget
from kvbench.compress.fit import fit_budget
from kvbench.decode import batch
from kvbench.decode.greedy import Decoder, Ended, Stop
from kvbench.model.loading import LoadedModel, ModelSpec, load
from kvbench.model.random import RandomShape
from kvbench.prefill.capture import capture
from kvbench.prefill.needs import Needs
from kvbench.run.memory import decode_bytes
from support.cases import slow
from support.methods import CHOICES, METHODS

TOKENS, STEPS = 640, 70
LOOKS = (1, 63, STEPS - 2)
"""Steps after which is looked: the first, just before SpindleKV merges, and near the end."""
SHAPE = RandomShape(layers=6, query_heads=6, kv_heads=2, head_dim=64, context=2048)


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    """Rows as long as a real model's, so that what is held beside them weighs as it does there."""
    return load(ModelSpec("held", "random", device="cpu", dtype="float32", random=SHAPE))


def alive() -> list[torch.Tensor]:
    """Every tensor that Python can reach."""
    return [x for x in gc.get_objects() if type(x) in (torch.Tensor, torch.nn.Parameter)]


def sizes(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Address -> bytes of the memory of each."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


QUICK = ("adakv", "fullkv", "h2o_official", "quantized", "snapkv", "spindlekv")
CASES = [(c, 0.2, True) if c in QUICK else slow(c, 0.2, True) for c in CHOICES]
CASES += [slow(choice, 0.5, True) for choice in CHOICES]
CASES += [(c, 0.2, False) for c in ("snapkv", "spindlekv", "quantized", "h2o_official")]


@pytest.mark.parametrize(("choice", "budget", "kernels"), CASES)
def test_no_more_is_held_than_claimed_and_the_tail(
    model: LoadedModel, choice: str, budget: float, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernels:
        monkeypatch.setattr(batch, "_kernels", lambda device: None)
    method, asked = METHODS[choice], Budget(fraction=budget)
    ids = torch.randint(0, 250, (TOKENS,), generator=torch.Generator().manual_seed(7))
    gc.collect()
    before = alive()  # held here, so that their memory is given to nobody else
    schedule = method.pruning_schedule(TOKENS, SHAPE.layers, asked)
    needs = Needs() if schedule is not None else method.needs
    prefill = capture(model, ids, needs, schedule)
    types = dict.fromkeys(method.needs.classifiers, "localization")
    prefill = replace(prefill, task_types=types)
    native, logits = prefill.nbytes, prefill.last_logits
    cache = fit_budget(method, prefill, asked)
    claimed, said = cache.nbytes, decode_bytes(cache, STEPS, model).total()
    rotates = any(store.tail_needs_pre_rope for store in cache.layers)
    del prefill
    decoder = Decoder(model, 1)
    decoder.add(cache, TOKENS, Stop(frozenset(), STEPS), first_logits=logits)
    del cache
    token = 2 * SHAPE.kv_heads * SHAPE.head_dim * 4 * SHAPE.layers
    # A tail grows by sixteen tokens or a quarter; merging reads its keys before RoPE too.
    tail = token * (STEPS * 5 // 4 + 16) * (1.5 if rotates else 1)
    most = steps = 0
    ended: list[Ended] = []
    gc.collect()
    while not ended:
        ended = decoder.step()
        steps += 1
        if steps not in LOOKS:
            continue
        known = sizes([*before, logits, *(table.cos for table in model.rotary_tables.tables)])
        held = sum(size for at, size in sizes(alive()).items() if at not in known)
        most = max(most, held)
    assert most <= claimed + tail + 0.02 * native
    generation = ended[0].generation
    assert generation is not None
    # The ids and positions of the step at hand are alive too; one more token came after the look.
    assert generation.decode_bytes - 2 * token <= most <= generation.decode_bytes + 4096
    assert generation.decode_bytes <= said, "what a memory limit counts on"

