"""How a cluster is divided among Ray's actors: by what a model needs, within what there is."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvbench.api import run_words
from kvbench.base.errors import UserError
from kvbench.config import ray_launcher
from kvbench.config.ray_launcher import Machine, Pool, RayLauncher, gpus_for, pool
from kvbench.model.loading import load, weight_bytes
from kvbench.model.spec import ModelSpec
from kvbench.records.reader import distinct, read_shards
from support.cli import one_line
from support.families import saved
from support.models import shipped_spec

GIB = 2**30


@pytest.mark.parametrize(
    ("machines", "actors", "gpus", "expected"),
    [
        ([(2, 0)], None, 0, Pool(2, 1, 0)),
        ([(8, 0)], 3, 0, Pool(3, 2, 0)),
        ([(16, 4)], None, 1, Pool(4, 4, 1)),
        ([(16, 4)], None, 2, Pool(2, 8, 2)),
        ([(16, 4)], 1, 3, Pool(1, 16, 3)),
        ([(16, 3), (16, 3)], None, 2, Pool(2, 16, 2)),  # an actor's GPUs are of one machine
        ([(64, 0), (8, 4), (8, 4)], None, 4, Pool(2, 8, 4)),  # and so are its cores
        ([(16, 4)], 6, 1, Pool(6, 2, 0.5)),  # shared evenly: 6 times 2/3 would not fit on 4
        ([(16, 4)], 8, 1, Pool(8, 2, 0.5)),
    ],
)
def test_a_cluster_is_divided_so_that_every_actor_fits(
    machines: list[tuple[int, int]], actors: int | None, gpus: int, expected: Pool
) -> None:
    assert pool([Machine(*m) for m in machines], actors, gpus, "model m") == expected


@pytest.mark.parametrize(
    ("machines", "actors", "gpus", "why", "words"),
    [
        ([(16, 2), (16, 2)], None, 3, "model big needs 3 GPUs of 80.0 GiB", "model big needs 3"),
        ([(16, 2), (16, 2)], None, 3, None, "launcher.gpus_per_actor=3: no machine"),
        ([(16, 0)], None, 1, None, "launcher.gpus_per_actor=1: no machine"),
        ([(16, 4)], 3, 2, None, "launcher.actors=3 with 2 GPUs each: the cluster has room for 2"),
        ([(16, 4)], 5, 1, None, "launcher.actors=5 with 1 GPUs each: the cluster has room for 4"),
        ([(2, 0)], 3, 0, None, "launcher.actors=3: each takes a core"),
    ],
)
def test_what_a_cluster_can_never_hold_is_refused_in_one_line(
    machines: list[tuple[int, int]], actors: int | None, gpus: int, why: str | None, words: str
) -> None:
    with pytest.raises(UserError) as refused:
        pool([Machine(*m) for m in machines], actors, gpus, why)
    assert words in one_line(refused)


@pytest.mark.parametrize(("gib", "gpus"), [(24, 7), (40, 4), (79.2, 2), (141, 2), (180, 1)])
def test_a_preset_is_given_the_gpus_its_weights_need(
    gib: float, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_launcher, "weight_bytes", lambda spec: 141_107_412_992)
    spec = shipped_spec("llama3-70b-instruct")
    assert gpus_for(spec, int(gib * GIB)) == gpus


@pytest.mark.slow
def test_weights_are_counted_by_the_published_shape() -> None:
    spec = shipped_spec("llama3-70b-instruct", random_weights=True)
    assert weight_bytes(spec) == 2 * 70_553_706_496
    assert gpus_for(spec, 80 * GIB) == 2


def test_a_model_that_is_not_to_be_spread_is_refused_where_it_needs_several(tmp_path: Path) -> None:
    saved(tmp_path)
    spec = ModelSpec("small", str(tmp_path), device="cpu")
    loaded = load(spec).network.parameters()
    assert weight_bytes(spec) == sum(p.nbytes for p in loaded)
    assert gpus_for(spec, 2 * weight_bytes(spec)) == 1
    with pytest.raises(UserError) as refused:
        gpus_for(spec, weight_bytes(spec) // 3)
    assert "model small weighs" in one_line(refused)
    assert "set model.device_map=auto to spread it over 4" in one_line(refused)


@pytest.mark.parametrize("value", [0, -1, 1.5, "many", True, None])
def test_a_wrong_number_of_gpus_is_one_line(value: Any) -> None:
    with pytest.raises(UserError) as refused:
        RayLauncher(gpus_per_actor=value)
    assert f"launcher.gpus_per_actor={value!r}" in one_line(refused)


@pytest.fixture
def four_gpus() -> Iterator[None]:
    """A local Ray that claims four GPUs, which nothing computes on."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'kvbench[ray]'")
    import ray

    ray.init(num_cpus=2, num_gpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.slow
def test_actors_take_gpus_of_a_real_cluster(
    four_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = shipped_spec("tiny-random")
    assert RayLauncher(actors=2).shards_for([tiny]) == 8, "they tell no memory: one each"
    monkeypatch.setattr(ray_launcher, "gpu_memory", lambda: 80 * GIB)
    monkeypatch.setattr(
        ray_launcher, "weight_bytes", lambda spec: (10 + 131 * (spec.name != tiny.name)) * 10**9
    )
    big = shipped_spec("llama3-70b-instruct")
    assert RayLauncher().shards_for([tiny, big]) == 8, "two actors of two GPUs"
    with pytest.raises(UserError, match="room for 2"):
        RayLauncher(actors=3).shards_for([big])
    with pytest.raises(UserError, match="gpus_per_actor=5: no machine"):
        RayLauncher(gpus_per_actor=5).shards_for([tiny])
    words = ["model=tiny-random", "model.device=cpu", "task=qasper", "limit=2", "budget=0.3"]
    words += ["protocol.max_new_tokens=4", "method=snapkv", f"out={tmp_path / 'run'}"]
    run_words([*words, "launcher=ray", "launcher.gpus_per_actor=2"])
    records = [record for _, record in distinct(read_shards(tmp_path / "run"))]
    assert len(records) == 4 and all(record.error is None for record in records)
    with pytest.raises(UserError, match="gpus_per_actor=8: no machine"):
        run_words([*words, "launcher=ray", "launcher.gpus_per_actor=8"])
