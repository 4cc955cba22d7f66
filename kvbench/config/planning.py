"""From Hydra's configuration to a frozen, validated plan.

No later module sees OmegaConf. Building a plan loads no weights and no data.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from kvbench.base.checks import as_text, check_whole_number
from kvbench.base.errors import UserError
from kvbench.base.sizes import parsed_bytes
from kvbench.base.suggest import did_you_mean
from kvbench.classifier.training import Training
from kvbench.compress.budget import Budget
from kvbench.compress.method import Method
from kvbench.config.catalog import Choice, choices
from kvbench.config.composition import Composition, composed, known_keys
from kvbench.config.consent import consents
from kvbench.config.objects import built, check_node, instantiated
from kvbench.config.words import hydra_words, nested_group, quoted
from kvbench.model.spec import ModelSpec
from kvbench.plan.names import ANALYSES, BASELINE
from kvbench.plan.plan import Plan
from kvbench.plan.protocol import Protocol
from kvbench.plan.settings import Decoding, Lengths, LmEvalTasks
from kvbench.plan.variant import Variant
from kvbench.prefill.disk import PrefillFolder
from kvbench.tasks.suite import Suite


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
        raise UserError(f"task._target_={plain['task'].get('_target_')} is not a kvbench Suite")
    protocol = _protocol(plain["protocol"], model, suite.first_token)
    check_whole_number("limit", plain["limit"], optional=True)
    check_whole_number("shards", plain["shards"])
    check_whole_number("shard", plain["shard"], least=0)
    if plain["shard"] >= plain["shards"]:
        raise UserError(
            f"shard={plain['shard']} is not below shards={plain['shards']}: count from 0"
        )
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
        decode=built(Decoding, "decode", plain["decode"]),
        analysis=_analysis(plain["analysis"], plain["shards"]),
        memory_bytes=parsed_bytes("memory", plain["memory"]),
        shard=plain["shard"],
        shards=plain["shards"],
        retry_failed=_flag(plain, "retry_failed"),
        prefill_cache=_cache_folder(plain),
        speed=built(Lengths, "speed", plain["speed"]),
        training=built(Training, "classifier", plain["classifier"]),
        lm_eval=_lm_eval(plain["lm_eval"]),
        paper=plain.get("experiment"),
        stated=plain,
    )


def _analysis(name: str | None, shards: int) -> str | None:
    if name is not None and name not in ANALYSES:
        raise UserError(f"analysis={name} is unknown: {did_you_mean(str(name), ANALYSES)}")
    if name is not None and shards > 1:
        raise UserError(f"shards={shards}: analysis={name} is one job, give shards=1")
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


def _cache_folder(plain: Mapping[str, Any]) -> PrefillFolder | None:
    limit = parsed_bytes("prefill_cache_size", plain["prefill_cache_size"])
    if limit is None:
        raise UserError("prefill_cache_size=null is not a size: give bytes such as 20GiB")
    folder = as_text("prefill_cache", plain["prefill_cache"], optional=True)
    return None if folder is None else PrefillFolder(Path(folder).expanduser(), limit)


def _lm_eval(node: object) -> LmEvalTasks:
    """Refuse what `kvbench lm-eval` could not read."""
    if not isinstance(node, Mapping) or node.keys() != {"tasks", "data"}:
        raise UserError(f"lm_eval={node!r} is not a node of tasks and data: leave out lm_eval=")
    tasks = as_text("lm_eval.tasks", node["tasks"], optional=True)
    return LmEvalTasks(tasks, str(as_text("lm_eval.data", node["data"])))


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
    if limit is None:
        limit = model.input_limit(protocol.name)
    return replace(protocol, chat_template=template, max_input_tokens=limit)


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
    ordered = sorted(found.values(), key=lambda variant: not variant.is_baseline)
    return suite_choice, tuple(ordered)


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
        raise UserError(f"method._target_={target} is not a kvbench Method")
    config = _values(composition.method)
    if choice == BASELINE:
        # Whatever the budget, all is kept: one row however many budgets are swept.
        return Variant(choice, choice, method, config, Budget(fraction=1.0), is_baseline=True)
    budget = Budget.parse(composition.budget)
    changed = _changes(config, choice, composition.choices)
    series = choice + (f"[{','.join(changed)}]" if changed else "")
    return Variant(series, choice, method, config, budget)


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


def words_of_method(method: Method) -> list[str] | None:
    """Return the words that choose a method and its fields; None where no YAML names its class."""
    choice = _choice_of(type(method))
    if choice is None:
        return None
    return [f"method={choice.name}", *_field_words(method, choice.config, "method")]


def variant_of_method(method: Method, budget: object) -> Variant:
    """Return the variant of a method whose class no YAML names; its file's name stands for one.

    Raises:
        UserError: the budget is none, or the method is not a frozen dataclass.
    """
    cls = type(method)
    if not is_dataclass(method):
        raise UserError(f"method {cls.__name__} is not a dataclass: write @dataclass(frozen=True)")
    config = {field.name: getattr(method, field.name) for field in fields(method)}
    changed = [
        f"{field.name}={_shown(config[field.name])}"
        for field in fields(method)
        if config[field.name] != field.default
    ]
    name = cls.__name__.lower()
    series = name + (f"[{','.join(changed)}]" if changed else "")
    plain = {key: value if _is_plain(value) else repr(value) for key, value in config.items()}
    return Variant(series, name, method, plain, Budget.parse(budget))


def _choice_of(cls: type) -> Choice | None:
    target = f"{cls.__module__}.{cls.__qualname__}"
    return next((c for c in choices("method") if c.config.get("_target_") == target), None)


def _field_words(method: Method, stated: Mapping[str, Any], path: str) -> list[str]:
    """Words for the fields that differ from what the method's YAML states."""
    words: list[str] = []
    assert is_dataclass(method)
    wrapped = {
        str(name).partition("@")[2]: value
        for default in stated.get("defaults", [])
        if isinstance(default, Mapping)
        for name, value in default.items()
    }
    for field in fields(method):
        value, name = getattr(method, field.name), f"{path}.{field.name}"
        if isinstance(value, Method):
            choice = _choice_of(type(value))
            if choice is None:
                raise UserError(
                    f"{name} is a {type(value).__name__}, which no YAML names: give a shipped one"
                )
            if wrapped.get(field.name) != choice.name:
                words.append(f"{name.replace('.', '/')}={choice.name}")
            words += _field_words(value, choice.config, name)
        elif stated.get(field.name, field.default) != value:
            words.append(f"{name}={word_of(value)}")
    return words


def word_of(value: object) -> str:
    """A plain value as Hydra reads it back."""
    if isinstance(value, float):
        return repr(value)
    return quoted(value) if isinstance(value, str) else _shown(value)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (str, int, float, bool))
