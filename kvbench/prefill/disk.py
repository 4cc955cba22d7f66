"""Prefills kept on disk, so that tomorrow's method on the same prompts needs no prefill.

One safetensors file per model and prompt, whose name holds a digest of its content: a damaged file
is noticed, deleted and computed again. The folder is bounded; what was used longest ago goes first.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kvbench.base.code import code_digest, reached_modules
from kvbench.model.attention import AttentionRule
from kvbench.model.hooks import rotary_function
from kvbench.model.loading import LoadedModel
from kvbench.model.rotary import Rotary
from kvbench.prefill.capture import capture
from kvbench.prefill.needs import Needs, Reconstruction
from kvbench.prefill.pruning import PruningSchedule
from kvbench.prefill.state import LayerState, Prefill, QueryStatistics, Repetition

_log = logging.getLogger(__name__)

ALWAYS = Needs(window=64)
"""Captured whether asked for or not: it costs next to nothing and most methods read it."""

_CODE = ("kvbench.prefill", "kvbench.model")
"""Packages whose code makes other prefills when it changes, as far as this module reaches them."""

_ENTRY = re.compile(r"[0-9a-f]{32}-[0-9a-f]{32}\.safetensors")
"""Names of entries; other files in the folder, such as a model's weights, are never deleted."""

_TENSORS = ("k", "v", "q_win", "k_pre", "column_sums", "positions")


@dataclass(frozen=True)
class PrefillFolder:
    """Where prefills are kept, and how much."""

    path: Path
    limit_bytes: int


class PrefillCache:
    """`capture` with a memory on disk."""

    def __init__(self, folder: PrefillFolder) -> None:
        """Use a folder; it is made when the first prefill is kept."""
        self._folder = folder
        self._usable = True
        self.found = 0
        """Prefills that were there."""
        self.made = 0
        """Prefills that had to be computed."""

    def capture(
        self, model: LoadedModel, ids: Tensor, needs: Needs, schedule: PruningSchedule | None = None
    ) -> Prefill:
        """Return what `kvbench.prefill.capture.capture` returns, from disk where it is there.

        An entry that lacks something of what is needed is made anew, with what it had.
        """
        key = prefill_key(model, ids, schedule)
        wanted = replace(needs, classifiers=frozenset())
        if schedule is None:
            wanted = wanted | ALWAYS
        for path in self._entries(key):
            kept = _read(path, model)
            if kept is None:
                path.unlink(missing_ok=True)
            elif kept[0] | wanted == kept[0]:
                with suppress(OSError):
                    os.utime(path)
                self.found += 1
                return kept[1]
            else:
                wanted = wanted | kept[0]
        made = capture(model, ids, wanted, schedule)
        self.made += 1
        self._keep(key, wanted, made)
        return made

    def _entries(self, key: str) -> list[Path]:
        return sorted(self._folder.path.glob(f"{key}-*.safetensors"))

    def _keep(self, key: str, needs: Needs, made: Prefill) -> None:
        """Write an entry whole or not at all; a disk that refuses ends the keeping, not the run."""
        if not self._usable:
            return
        before = self._entries(key)
        unfinished = self._folder.path / f"{key}.{secrets.token_hex(4)}.part"
        try:
            self._folder.path.mkdir(parents=True, exist_ok=True)
            tensors, facts = _taken_apart(made)
            text = json.dumps({"needs": _plain_needs(needs), **facts})
            save_file(tensors, unfinished, {"prefill": text})
            name = f"{key}-{_digest(unfinished)}.safetensors"
            unfinished.replace(self._folder.path / name)
            for path in before:
                if path.name != name:
                    path.unlink(missing_ok=True)
            self._make_room()
        except OSError as error:
            self._usable = False
            with suppress(OSError):
                unfinished.unlink()
            _log.warning(
                "kvbench: prefills are no longer kept in %s: %s", self._folder.path, error.strerror
            )

    def _make_room(self) -> None:
        """Delete the entries used longest ago until those left are within the bound."""
        files = self._folder.path.glob("*.safetensors")
        sizes = {p: p.stat() for p in files if _ENTRY.fullmatch(p.name)}
        total = sum(s.st_size for s in sizes.values())
        for path in sorted(sizes, key=lambda p: sizes[p].st_mtime_ns):
            if total <= self._folder.limit_bytes:
                break
            path.unlink(missing_ok=True)
            total -= sizes[path].st_size


def prefill_key(model: LoadedModel, ids: Tensor, schedule: PruningSchedule | None) -> str:
    """Name a prefill by weights, prompt, pruning, code, libraries and devices: 32 hex digits."""
    parts = [
        model.fingerprint,
        ids.tolist(),
        None if schedule is None else asdict(schedule),
        code_digest(reached_modules((__name__,), _CODE)),
        torch.__version__,
        transformers.__version__,
        [str(device) for device in (model.device, *model.layer_devices)],
    ]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def _digest(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _plain_needs(needs: Needs) -> dict[str, Any]:
    return {
        **asdict(needs),
        "query_statistics": sorted(needs.query_statistics),
        "last_block_sums": sorted(needs.last_block_sums),
        "classifiers": [],
        "reconstructions": [asdict(r) for r in sorted(needs.reconstructions, key=repr)],
    }


def _needs(plain: Mapping[str, Any]) -> Needs:
    passes = frozenset(Reconstruction(**r) for r in plain["reconstructions"])
    return Needs(
        **{
            **plain,
            "query_statistics": frozenset(plain["query_statistics"]),
            "last_block_sums": frozenset(plain["last_block_sums"]),
            "classifiers": frozenset(),
            "reconstructions": passes,
        }
    )


def _taken_apart(made: Prefill) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Named tensors, each once, and what is said of every layer."""
    tensors = {"last_logits": made.last_logits}
    tables: dict[int, str] = {}  # layers share their tables of cos and sin
    layers = []
    for number, state in enumerate(made.layers):
        tensors |= {f"{number}.{name}": t.contiguous() for name, t in _tensors_of(state)}
        facts: dict[str, Any] = {"index": state.index, "rule": asdict(state.rule)}
        facts["device"] = str(state.k.device)
        if state.rotary is not None:
            for name in ("cos", "sin"):
                table = getattr(state.rotary.table, name)[: made.tokens]
                facts[name] = tables.setdefault(table.data_ptr(), f"{number}.{name}")
                tensors.setdefault(facts[name], table.contiguous())
        layers.append(facts)
    repetitions = [[asdict(passes), asdict(how)] for passes, how in made.repetitions.items()]
    return tensors, {
        "layers": layers,
        "template_tokens": made.template_tokens,
        "repetitions": repetitions,
    }


def _tensors_of(state: LayerState) -> Iterator[tuple[str, Tensor]]:
    for name in _TENSORS:
        tensor = getattr(state, name)
        if tensor is not None:
            # Layers that pruning fed the same tokens share their positions, which a file may not.
            yield name, tensor.clone() if name == "positions" else tensor
    for passes, scores in state.reconstructions.items():
        yield f"reconstruction {json.dumps(asdict(passes))}", scores
    for block, sums in state.last_block_sums.items():
        yield f"last block sums {block}", sums
    for skipped, moments in state.query_statistics.items():
        yield f"mean {skipped}", moments.mean
        yield f"covariance {skipped}", moments.covariance


def _read(path: Path, model: LoadedModel) -> tuple[Needs, Prefill] | None:
    """An entry and what it holds; None where it is not what was written."""
    try:
        if _digest(path) != path.stem.rpartition("-")[2]:
            return None
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["prefill"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        layers = tuple(
            _layer(tensors, f"{n}.", layer, model) for n, layer in enumerate(facts["layers"])
        )
        logits = tensors["last_logits"].to(model.device)
        made = Prefill(
            layers,
            last_logits=logits,
            template_tokens=facts["template_tokens"],
            repetitions={
                Reconstruction(**passes): Repetition(**how) for passes, how in facts["repetitions"]
            },
        )
        return _needs(facts["needs"]), made
    except (OSError, SafetensorError, ValueError, LookupError, TypeError, RuntimeError):
        return None


def _layer(
    tensors: Mapping[str, Tensor], prefix: str, facts: Mapping[str, Any], model: LoadedModel
) -> LayerState:
    device = facts["device"]
    mine = {
        n.removeprefix(prefix): t.to(device) for n, t in tensors.items() if n.startswith(prefix)
    }
    rotary = None
    if "cos" in facts:
        cos, sin = (tensors[facts[name]].to(device) for name in ("cos", "sin"))
        table = model.rotary_tables.table(cos, sin)
        rotary = Rotary(table, rotary_function(model.network))
    return LayerState(
        index=facts["index"],
        rule=AttentionRule(**facts["rule"]),
        **{name: mine.get(name) for name in _TENSORS},  # type: ignore[arg-type]
        rotary=rotary,
        reconstructions={
            Reconstruction(**json.loads(name.removeprefix("reconstruction "))): scores
            for name, scores in mine.items()
            if name.startswith("reconstruction ")
        },
        last_block_sums={
            int(name.removeprefix("last block sums ")): sums
            for name, sums in mine.items()
            if name.startswith("last block sums ")
        },
        query_statistics={
            int(name.removeprefix("mean ")): QueryStatistics(
                mean, mine[name.replace("mean", "covariance")]
            )
            for name, mean in mine.items()
            if name.startswith("mean ")
        },
    )
