"""From Hydra's configuration to a frozen, validated plan; the only module that sees OmegaConf.

A plan says everything a run needs and nothing of how it goes. Building one loads no weights and no
data.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from kvbench.analysis import ANALYSES
from kvbench.budget import Budget
from kvbench.capture_cache import CacheFolder
from kvbench.classifier import ORACLE, classifier_digest
from kvbench.composition import Composition, composed, known_keys
from kvbench.configured import as_text, built, check_node, check_whole_number, instantiated
from kvbench.consent import consents
from kvbench.errors import UserError
from kvbench.memory import parsed_bytes
from kvbench.method import Method
from kvbench.modelspec import ModelSpec, model_identity
from kvbench.overrides import hydra_words, nested_group
from kvbench.suggest import did_you_mean
from kvbench.tasks.suite import Suite
from kvbench.tasks.task import Sample, Task

BASELINE = "fullkv"
"""The choice in conf/method that every table compares with."""

_LEGAL: dict[str, tuple[object, ...]] = {
    "truncation": ("middle", "none"),
    "chat_template": ("official", "none", "llama2", "paper"),
    "stop": ("eos_or_newline", "tokenizer_eos"),
    "min_new_tokens": ("newline_tasks", "all", "none"),
    "code_similarity": ("difflib", "levenshtein"),
    "query_aware": (True, False),
    "first_token": ("prefill", "compressed"),
}


@dataclass(frozen=True)
class Protocol:
    """How prompts are made, generation ends and code is scored; stamped on every record."""

    name: str
    """Profile, `official` or `paper`; also picks the model's published input limit."""
    truncation: str
    """`middle`: first half + last half of the tokens of a prompt that is too long; or `none`."""
    chat_template: str
    """`official`: the tokenizer's own where the task takes one; `none`; `llama2`."""
    stop: str
    """`eos_or_newline`: every EOS id, and a newline where the task says so; `tokenizer_eos`."""
    min_new_tokens: str
    """Who must generate at least one token: `newline_tasks`, `all` or `none`."""
    code_similarity: str
    """`difflib` or `levenshtein`."""
    query_aware: bool
    """False: only the context is compressed and the question is fed afterwards."""
    first_token: str
    """`prefill`: from the uncompressed prefill's logits; `compressed`: after compression."""
    max_input_tokens: int | None
    """Prompt tokens before truncation; None: the model's context less what is generated."""

    def __post_init__(self) -> None:
        """Refuse values that no profile has."""
        for name, legal in _LEGAL.items():
            value = getattr(self, name)
            if value not in legal:
                known = ", ".join(str(x).lower() if isinstance(x, bool) else str(x) for x in legal)
                raise UserError(f"protocol.{name}={value!r} is unknown: give one of {known}")
        check_whole_number("protocol.max_input_tokens", self.max_input_tokens, optional=True)

    def min_tokens(self, task: Task) -> int:
        """Tokens that must be generated on a task before a stop counts."""
        if self.min_new_tokens == "all":
            return 1
        return int(self.min_new_tokens == "newline_tasks" and task.stop_at_newline)

    def stops_at_newline(self, task: Task) -> bool:
        """Whether a newline ends a task's answer."""
        return self.stop == "eos_or_newline" and task.stop_at_newline


@dataclass(frozen=True)
class Variant:
    """One method at one budget, a row of the table."""

    label: str
    """Unique in the run: `spindlekv@0.2`, with changed fields: `spindlekv@0.2[beta=0.1]`."""
    choice: str
    """File stem in conf/method."""
    method: Method
    config: Mapping[str, Any]
    """The method's fields as configured, JSON-able."""
    budget: Budget

    @cached_property
    def digest(self) -> str:
        """Fingerprint of the class, its fields, source code and classifiers, and the budget."""
        budget = self.budget.fraction if self.budget.tokens is None else self.budget.tokens
        parts = [_method_parts(self.method), self.budget.tokens is None, budget]
        trained = sorted(self.method.needs.classifiers - {ORACLE})
        return fingerprint(parts + [classifier_digest(folder) for folder in trained])


@dataclass(frozen=True)
class Plan:
    """What one job runs."""

    model: ModelSpec
    suite: Suite[Any]
    """Names the tasks and reads their samples."""
    suite_choice: str
    """File stem in conf/task."""
    data: str
    """`sample`, `hub`, or a path; the suite's own data by its short name."""
    hub_repo: str
    """Dataset repository that `hub` reads."""
    data_revision: str | None
    """Its branch, tag or commit; None: the pinned one."""
    protocol: Protocol
    variants: tuple[Variant, ...]
    """The baseline first, if there is one."""
    limit: int | None
    """First records of each task; None: all."""
    out: Path
    """Folder of the records."""
    decode_width: int | None
    """Rows decoded together; None: one per variant."""
    analysis: str | None
    """What is measured instead of answers, one of `ANALYSES`; None: answers."""
    memory_bytes: int | None
    """What prefill and decode batches may take beside the model; None: most of what is free."""
    shard: int
    """Which part of the samples is this job's, from 0."""
    shards: int
    """Parts that the samples are dealt into."""
    retry_failed: bool
    """Whether results that failed before are computed again."""
    prefill_cache: CacheFolder | None
    """Where prefills are kept for later runs; None: nowhere."""
    config: Mapping[str, Any]
    """The resolved configuration, JSON-able, for the run header."""

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """The scored tasks in table order."""
        return self.suite.tasks(self.protocol.code_similarity)

    @cached_property
    def model_identity(self) -> Mapping[str, Any]:
        """What identifies the weights and their dtype."""
        return model_identity(self.model)

    @cached_property
    def digest(self) -> str:
        """Fingerprint of the model and the protocol: what every record of the run shares."""
        return fingerprint([self.model_identity, self.model.context, asdict(self.protocol)])


def record_key(plan: Plan, variant: Variant, sample: Sample) -> str:
    """Name the one result that these three have, whichever run makes it.

    The key covers what can change a result: weights and dtype, protocol, the task's prompt and
    limits, the sample's content, the method with its fields, code and budget. It does not cover
    where records go, what else is run, or the scoring code (records can be scored again).
    """
    parts = plan.digest + variant.digest + _task_digest(sample.task) + sample.digest
    return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


def fingerprint(parts: object) -> str:
    """Hash JSON-able parts: blake2b of sorted-key JSON, 32 hex digits; 1 and 1.0 are the same.

    Raises:
        TypeError: a part has no unique JSON form (NaN, a set, an object).
    """
    text = json.dumps(_plain(parts), sort_keys=True, allow_nan=False, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def plan_from_config(config: DictConfig, overrides: Sequence[str]) -> Plan:
    """Validate a job's configuration.

    Args:
        config: composed by Hydra, without its own node.
        overrides: the words it was composed with; variants are composed with them again.

    Raises:
        UserError: a value is out of range or a name is unknown.
    """
    plain = _resolved(config)
    _check_keys(plain)
    # A file that came with somebody's experiment cannot consent for its reader.
    targets_allowed = _flag(plain, "allow_targets") and consents(overrides)
    model = built(ModelSpec, "model", plain["model"])
    suite = instantiated(plain["task"], "task", targets_allowed)
    if not isinstance(suite, Suite):
        raise UserError(f"task._target_={plain['task'].get('_target_')} is no kvbench Suite")
    protocol = _protocol(plain["protocol"], model, suite.first_token)
    for name in ("limit", "decode_width"):
        check_whole_number(name, plain[name], optional=True)
    check_whole_number("shards", plain["shards"])
    check_whole_number("shard", plain["shard"], least=0)
    if plain["shard"] >= plain["shards"]:
        raise UserError(
            f"shard={plain['shard']} is not below shards={plain['shards']}: count from 0"
        )
    _check_lm_eval(plain["lm_eval"])
    data = suite.own_data or str(as_text("data", plain["data"]))
    hub_repo = str(as_text("hub_repo", plain["hub_repo"]))
    data_revision = as_text("data_revision", plain["data_revision"], optional=True)
    _ = model.kind  # this and the next refuse a path that is not there
    if data != "hub":
        suite.source(data, hub_repo=hub_repo, revision=data_revision)
    suite_choice, variants = _variants(plain, overrides, targets_allowed)
    out = as_text("out", plain["out"], optional=True) or Path(
        "results", "runs", f"{model.name}-{data_label(data)}-{protocol.name}"
    )
    return Plan(
        model=model,
        suite=suite,
        suite_choice=suite_choice,
        data=data,
        hub_repo=hub_repo,
        data_revision=data_revision,
        protocol=protocol,
        variants=variants,
        limit=plain["limit"],
        out=Path(str(out)).expanduser(),
        decode_width=plain["decode_width"],
        analysis=_analysis(plain["analysis"]),
        memory_bytes=parsed_bytes("memory", plain["memory"]),
        shard=plain["shard"],
        shards=plain["shards"],
        retry_failed=_flag(plain, "retry_failed"),
        prefill_cache=_cache_folder(plain),
        config=plain,
    )


def _analysis(name: str | None) -> str | None:
    if name is not None and name not in ANALYSES:
        raise UserError(f"analysis={name} is unknown: {did_you_mean(str(name), ANALYSES)}")
    return name


def _check_keys(plain: Mapping[str, Any]) -> None:
    """Refuse a key that nothing reads (`+key=` adds one) and the lack of one (`~key`)."""
    known = known_keys() | {"experiment"}
    for key in plain.keys() - known:
        raise UserError(f"{key} is unknown: {did_you_mean(key, known)}")
    for key in known - plain.keys() - {"experiment"}:
        raise UserError(f"{key} is missing: leave out ~{key}")


def _flag(plain: Mapping[str, Any], name: str) -> bool:
    value = plain[name]
    if not isinstance(value, bool):
        raise UserError(f"{name}={value!r} is neither true nor false")
    return value


def _cache_folder(plain: Mapping[str, Any]) -> CacheFolder | None:
    limit = parsed_bytes("prefill_cache_size", plain["prefill_cache_size"])
    if limit is None:
        raise UserError("prefill_cache_size=null is no size: give bytes such as 20GiB")
    folder = as_text("prefill_cache", plain["prefill_cache"], optional=True)
    return None if folder is None else CacheFolder(Path(folder).expanduser(), limit)


def _check_lm_eval(node: object) -> None:
    """Refuse what `kvbench lm-eval` could not read."""
    if not isinstance(node, Mapping) or node.keys() != {"tasks", "data"}:
        raise UserError(f"lm_eval={node!r} is not a node of tasks and data: leave out lm_eval=")
    as_text("lm_eval.data", node["data"])
    as_text("lm_eval.tasks", node["tasks"], optional=True)


def data_label(data: str) -> str:
    """Short name of a data setting for folders and tables: the last part of a path."""
    return data if data in ("sample", "hub") else (Path(data).expanduser().resolve().stem or "data")


def _protocol(config: Mapping[str, Any], model: ModelSpec, first_token: str) -> Protocol:
    """The profile with what it leaves to the task and to the model filled in."""
    check_node("protocol", config)
    if config.get("first_token") is None:
        config = {**config, "first_token": first_token}
    protocol = built(Protocol, "protocol", config)
    template = protocol.chat_template
    if template == "paper":
        # The harness behind the papers' tables decides by the path's name.
        name = f"{model.name} {model.path}".lower().replace("-", "")
        template = "llama2" if "llama2" in name else "none"
    limit = protocol.max_input_tokens
    values = {f.name: getattr(protocol, f.name) for f in fields(protocol)}
    values["chat_template"] = template
    values["max_input_tokens"] = model.input_limit(protocol.name) if limit is None else limit
    return Protocol(**values)


def _variants(
    plain: Mapping[str, Any], overrides: Sequence[str], targets_allowed: bool
) -> tuple[str, tuple[Variant, ...]]:
    """Compose each variant's own configuration; the baseline comes first and once.

    Returns:
        The chosen suite and the variants.
    """
    words = [w for w in hydra_words(overrides) if not w.lstrip("+").startswith("variants=")]
    rows = _product(words, _override_lists(plain, "rows"), _override_lists(plain, "variants"))
    baseline = _flag(plain, "baseline")
    suite_choice = ""
    found: dict[str, Variant] = {}
    # The baseline takes no word meant for the methods, such as method.window=16.
    for row in [[f"method={BASELINE}"]] * baseline + [words + hydra_words(r) for r in rows]:
        composition = composed(row)
        suite_choice = str(composition.choices["task"])
        variant = _variant(composition, targets_allowed)
        found.setdefault(variant.label, variant)
    first = [v for v in found.values() if v.choice == BASELINE]
    return suite_choice, tuple(first + [v for v in found.values() if v.choice != BASELINE])


def _override_lists(plain: Mapping[str, Any], key: str) -> list[list[str]]:
    lists = plain[key] or [[]]
    if not isinstance(lists, list) or not all(isinstance(row, list) for row in lists):
        raise UserError(f"{key}={lists!r} is not a list of lists of overrides")
    return lists


def _product(
    words: Sequence[str], rows: list[list[str]], variants: list[list[str]]
) -> list[list[str]]:
    """Take an experiment's rows at each swept variant; methods that the user names replace them."""
    if any(w.startswith("method=") for w in [*words, *itertools.chain(*variants)]):
        return variants
    return [row + variant for variant in variants for row in rows]


def _variant(composition: Composition, targets_allowed: bool) -> Variant:
    choice = str(composition.choices["method"])
    method = instantiated(composition.method, "method", targets_allowed)
    if not isinstance(method, Method):
        target = composition.method.get("_target_")
        raise UserError(f"method._target_={target} is no kvbench Method")
    config = _values(composition.method)
    if choice == BASELINE:
        # Whatever the budget, all is kept: one row however many budgets are swept.
        return Variant(choice, choice, method, config, Budget(fraction=1.0))
    budget = Budget.parse(composition.budget)
    changed = _changes(config, choice, composition.choices)
    label = f"{choice}@{budget}" + (f"[{','.join(changed)}]" if changed else "")
    return Variant(label, choice, method, config, budget)


def _changes(
    config: Mapping[str, Any], choice: str, chosen: Mapping[str, str | None], path: str = ""
) -> list[str]:
    """Fields that differ from the choice's own YAML, such as `beta=0.1` or `base=h2o`.

    Args:
        config: the fields of one method, nested methods with their `_target_`.
        choice: its file stem.
        chosen: Hydra's choices, those of nested methods included.
        path: where the method stands in the outermost one, such as `base.`.
    """
    published, published_choices = _default_fields(choice)
    changed = []
    for key, value in config.items():
        inner = chosen.get(nested_group(path + key))
        if isinstance(value, Mapping) and inner is not None:
            if published_choices.get(nested_group(key)) != inner:
                changed.append(f"{path}{key}={inner}")
            changed += _changes(_values(value), inner, chosen, f"{path}{key}.")
        elif published.get(key, ...) != value:
            changed.append(f"{path}{key}={_shown(value)}")
    return changed


def _default_fields(choice: str) -> tuple[Mapping[str, Any], Mapping[str, str | None]]:
    """A method's fields as its YAML states them, and what it wraps."""
    composition = composed([f"method={choice}"])
    return _values(composition.method), composition.choices


def _values(node: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(k): v for k, v in node.items() if k != "_target_"}


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _resolved(config: DictConfig) -> dict[str, Any]:
    """Plain values; override strings of rows and variants are kept as written."""
    try:
        plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        raise UserError(f"{error.full_key} is not set: give {error.full_key}=...") from error
    except OmegaConfBaseException as error:
        raise UserError(" ".join(str(error).split())) from error
    assert isinstance(plain, dict)
    kept = OmegaConf.to_container(config, resolve=False)
    assert isinstance(kept, dict)
    return {str(k): kept[k] if k in ("rows", "variants") else v for k, v in plain.items()}


@lru_cache
def _task_digest(task: Task) -> str:
    names = ("name", "template", "max_new_tokens", "chat_template", "stop_at_newline")
    return fingerprint([getattr(task, name) for name in names])


def _method_parts(method: Method) -> list[object]:
    cls = type(method)
    assert is_dataclass(method)
    values = {f.name: getattr(method, f.name) for f in fields(method)}
    nested = {k: _method_parts(v) if isinstance(v, Method) else v for k, v in values.items()}
    return [f"{cls.__module__}.{cls.__qualname__}", _code_version(cls), nested]


@lru_cache
def _code_version(cls: type[Method]) -> str:
    """Hash of the files that define the class and the methods it inherits from."""
    lineage = [c for c in cls.__mro__ if issubclass(c, Method) and c is not Method]
    files = dict.fromkeys(inspect.getsourcefile(c) for c in lineage)
    sources = b"".join(Path(f).read_bytes() for f in files if f)
    return hashlib.blake2b(sources, digest_size=8).hexdigest()


def _plain(value: object) -> object:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{value} has no JSON form")
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        if not all(isinstance(k, str) for k in value):
            raise TypeError(f"keys of {value!r} are not all text")
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    raise TypeError(f"{value!r} has no unique JSON form")
