"""What the first line of each shard says of its run, typed; its line as JSON; lines of any age."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from kvbench.base.errors import UserError
from kvbench.base.version import __version__
from kvbench.compress.budget import Budget
from kvbench.plan.names import BASELINE, SAMPLE
from kvbench.records.fields import fits

SCHEMA = 1
"""Version of the line format; readers refuse another."""


@dataclass(frozen=True)
class ModelFacts:
    """Which weights ran."""

    name: str
    """Name in tables."""
    path: str = ""
    dtype: str = ""
    revision: str | None = None
    """The hub's commit; None for files."""
    source: str = ""
    """Where the weights are from: random, package, gguf, folder or hub."""
    weights: Any = None
    """What tells these weights from others."""


@dataclass(frozen=True)
class DataFacts:
    """Which samples ran."""

    setting: str
    """`sample`, `hub` or a path."""
    description: str
    revision: str | None = None
    """The hub's commit; None for files."""
    hashes: Mapping[str, str] = field(default_factory=dict)
    """Task -> hash of its file; empty where nothing was read."""

    @property
    def is_sample_suite(self) -> bool:
        """Whether these are kvbench's own samples in LongBench's formats."""
        return self.setting == SAMPLE


@dataclass(frozen=True)
class ProtocolFacts:
    """How prompts were made, generation ended and code was scored; `Protocol` explains each."""

    name: str
    truncation: str = ""
    chat_template: str = ""
    stop: str = ""
    min_new_tokens: str = ""
    code_similarity: str = "difflib"
    query_aware: bool = True
    first_token: str = "prefill"
    max_input_tokens: int | None = None
    max_new_tokens: int | None = None
    further: Mapping[str, Any] = field(default_factory=dict)
    """What only lm-eval's protocols have, such as `num_fewshot`."""


@dataclass(frozen=True)
class VariantFacts:
    """A row that the run fills."""

    label: str
    method: str
    """File stem in conf/method."""
    series: str
    """The label without its budget."""
    budget: Budget
    is_baseline: bool = False
    config: Mapping[str, Any] = field(default_factory=dict)
    """The method's fields."""


@dataclass(frozen=True)
class TaskFacts:
    """A task that the run scores."""

    name: str
    group: str
    samples: int
    """Samples that a complete row has scored."""
    max_new_tokens: int
    one_token_answers: bool


@dataclass(frozen=True)
class RunHeader:
    """What a shard says of the run that wrote it."""

    run: str
    """Random name, 12 hex digits."""
    started: str
    """UTC, ISO 8601."""
    suite: str
    """File stem in conf/task."""
    model: ModelFacts
    data: DataFacts
    protocol: ProtocolFacts
    variants: tuple[VariantFacts, ...]
    tasks: tuple[TaskFacts, ...]
    stated: Mapping[str, Any]
    """The resolved configuration; the properties below say what of it is read."""
    versions: Mapping[str, Any]
    """Library -> version."""
    git: Mapping[str, Any]
    """`commit` and `dirty` of kvbench's checkout."""
    machine: Mapping[str, Any]
    """What timings depend on."""

    @property
    def task_settings(self) -> Mapping[str, Any]:
        """The node of the suite, with its `_target_`."""
        return dict(self.stated.get("task", {}))

    @property
    def protocol_settings(self) -> Mapping[str, Any]:
        """The protocol as configured, before the model filled in what it leaves open."""
        return dict(self.stated.get("protocol", {}))

    @property
    def limit(self) -> int | None:
        """First records of each task that were run; None: all."""
        return self.stated.get("limit")

    def line(self) -> dict[str, Any]:
        """The JSON-able first line of a shard."""
        protocol = {k: v for k, v in asdict(self.protocol).items() if k != "further"}
        return {
            "kind": "header",
            "schema": SCHEMA,
            "kvbench": __version__,
            "run": self.run,
            "started": self.started,
            "model": asdict(self.model),
            "suite": self.suite,
            "data": asdict(self.data),
            "protocol": {**protocol, **self.protocol.further},
            "variants": [_variant_line(variant) for variant in self.variants],
            "tasks": [asdict(task) for task in self.tasks],
            "config": dict(self.stated),
            "versions": dict(self.versions),
            "git": dict(self.git),
            "machine": dict(self.machine),
        }


def _variant_line(variant: VariantFacts) -> dict[str, Any]:
    return {
        "label": variant.label,
        "method": variant.method,
        "series": variant.series,
        "budget": str(variant.budget),
        "budget_unit": variant.budget.unit,
        "is_baseline": variant.is_baseline,
        "config": dict(variant.config),
    }


_HEADER: Mapping[str, Any] = {
    "run": str,
    "started": str,
    "suite": str,
    "versions": dict[str, Any],
    "git": dict[str, Any],
    "machine": dict[str, Any],
    "model": dict[str, Any],
    "protocol": dict[str, Any],
    "data": dict[str, Any],
    "config": dict[str, Any],
    "variants": list[dict[str, Any]],
    "tasks": list[dict[str, Any]],
}
_NAMED: Mapping[str, Any] = {"name": str}
_DATA: Mapping[str, Any] = {"setting": str, "description": str, "hashes": dict[str, Any]}
_VARIANT: Mapping[str, Any] = {"label": str, "method": str, "budget": str}
_TASK: Mapping[str, Any] = {
    "name": str,
    "group": str,
    "samples": int,
    "max_new_tokens": int,
    "one_token_answers": bool,
}
_WHERE_PRESENT: Mapping[str, Mapping[str, Any]] = {
    "model": {"path": str, "dtype": str, "revision": str | None, "source": str},
    "data": {"revision": str | None},
    "protocol": {
        **{f: str for f in ("truncation", "chat_template", "stop", "min_new_tokens")},
        **{f: str for f in ("code_similarity", "first_token")},
        "query_aware": bool,
        "max_input_tokens": int | None,
        "max_new_tokens": int | None,
    },
    "config": {"task": dict[str, Any], "protocol": dict[str, Any], "limit": int | None},
}
"""Node of a header -> its entries that older ones lack."""
_FILE_NAME = re.compile(r"[^/\\\x00-\x1f\x7f.][^/\\\x00-\x1f\x7f]{0,199}")
_NUMBER = re.compile(r"\d+(\.\d+)?(e-?\d+)?")


def read_header(path: Path, line: Mapping[str, Any]) -> RunHeader:
    """Read the first line of a shard, of this kvbench or an older one.

    Raises:
        UserError: it lacks what readers read, or has it wrong; names the file and the entry.
    """
    _check(path, line)
    protocol, known = line["protocol"], {f.name for f in fields(ProtocolFacts)}
    return RunHeader(
        run=line["run"],
        started=line["started"],
        suite=line["suite"],
        model=ModelFacts(**_known(ModelFacts, line["model"])),
        data=DataFacts(**_known(DataFacts, line["data"])),
        protocol=ProtocolFacts(
            **_known(ProtocolFacts, protocol),
            further={name: value for name, value in protocol.items() if name not in known},
        ),
        variants=tuple(read_variant(variant) for variant in line["variants"]),
        tasks=tuple(TaskFacts(**_known(TaskFacts, task)) for task in line["tasks"]),
        stated=line["config"],
        versions=line["versions"],
        git=line["git"],
        machine=line["machine"],
    )


def _known(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(cls)}
    return {name: value for name, value in values.items() if name in names and name != "further"}


def read_variant(line: Mapping[str, Any]) -> VariantFacts:
    """Read what a line says of a variant; older ones tell the budget's unit by its text alone."""
    text, label = line["budget"], line["label"]
    is_baseline = bool(line.get("is_baseline", line["method"] == BASELINE))
    unit = "fraction" if is_baseline or set(text) & set(".e") else "tokens"
    budget = Budget.of(float(text), str(line.get("budget_unit") or unit))
    series = line.get("series")
    if not isinstance(series, str):
        series = label.replace(f"@{text}", "", 1)
    config = line.get("config")
    return VariantFacts(
        label,
        line["method"],
        series,
        budget,
        is_baseline,
        config if isinstance(config, Mapping) else {},
    )


def _check(path: Path, line: Mapping[str, Any]) -> None:
    nodes: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = [(line, _HEADER)]
    if all(fits(line.get(name), hint) for name, hint in _HEADER.items()):
        nodes += [(line[name], _NAMED) for name in ("model", "protocol")]
        nodes += [(line["data"], _DATA)]
        nodes += [(variant, _VARIANT) for variant in line["variants"]]
        nodes += [(task, _TASK) for task in line["tasks"]]
    for node, hints in nodes:
        for name, hint in hints.items():
            if not fits(node.get(name), hint) or node[name] == []:
                raise _damaged(path, name, node.get(name))
    for name, hints in _WHERE_PRESENT.items():
        for entry in hints.keys() & line[name].keys():
            if not fits(line[name][entry], hints[entry]):
                raise _damaged(path, entry, line[name][entry])
    for task in line["tasks"]:
        if not _FILE_NAME.fullmatch(task["name"]):  # figures are files with the task's name
            raise _damaged(path, "name", task["name"])
    for variant in line["variants"]:
        if not _NUMBER.fullmatch(variant["budget"]):
            raise _damaged(path, "budget", variant["budget"])


def _damaged(path: Path, name: str, value: object) -> UserError:
    return UserError(f"{path} has a damaged header ({name} is {value!r:.80}): move the file away")
