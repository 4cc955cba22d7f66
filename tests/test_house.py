"""The house itself: what may import what, and where the names of others stand."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvbench.config import hydra_private
from kvbench.config.catalog import choices
from kvbench.lmeval import private as lmeval_private
from kvbench.model import hooks

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ROOT / "kvbench"

FLOORS = (
    "base",
    "model",
    "data",
    "prefill",
    "tasks",
    "cache",
    "classifier",
    "decode",
    "compress",
    "methods",
    "plan",
    "config",
    "records",
    "run",
    "report",
    "analysis",
    "api",
    "lmeval",
    "gate",
    "cli",
    "__main__",
)
"""From the ground up: what stands here imports only what stands before it."""

MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PRODUCT.rglob("*.py"))
} | {
    f"kvbench.methods.{path.stem}".removesuffix(".__init__"): path
    for path in sorted((ROOT / "methods").glob("*.py"))
}


def package_of(module: str) -> str:
    """The room a module stands in: `base` of `kvbench.base.errors`."""
    return module.split(".")[1] if "." in module else ""


def imports_of(module: str) -> Iterator[str]:
    """Every module of kvbench that a module imports, for type checkers too."""
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = str(node.module)
            if node.level:  # methods that stand on another one, beside it
                assert node.level == 1 and package_of(module) == "methods", module
                source = f"kvbench.methods.{source}"
            inner = [f"{source}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else source for name in inner]
        else:
            continue
        yield from (name for name in names if name.partition(".")[0] == "kvbench")


def test_every_room_has_its_floor() -> None:
    rooms = {package_of(module) for module in MODULES} - {""}
    assert rooms == set(FLOORS)


def test_no_import_points_upward() -> None:
    floor = {room: number for number, room in enumerate(FLOORS)}
    upward = [
        f"{module} -> {imported}"
        for module in MODULES
        if module != "kvbench"  # the public surface names what stands anywhere
        for imported in imports_of(module)
        if package_of(imported) == "" or floor[package_of(imported)] > floor[package_of(module)]
    ]
    assert upward == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    waiting = {module: set(imports_of(module)) - {module} for module in MODULES}
    del waiting["kvbench"]
    while free := [module for module, needs in waiting.items() if not needs & waiting.keys()]:
        for module in free:
            del waiting[module]
    assert waiting == {}


def test_at_most_thirty_rooms_stand_at_the_top() -> None:
    rooms = {path.name for path in PRODUCT.iterdir() if path.name != "__pycache__"}
    assert len(rooms | {"methods", "conf", "scripts"}) <= 30


def test_a_method_is_one_file_and_one_yaml() -> None:
    stated = {
        str(choice.config["_target_"]).rpartition(".")[0]
        for choice in choices("method")
        if "_target_" in choice.config
    }
    files = {f"kvbench.methods.{p.stem}" for p in (ROOT / "methods").glob("*.py")}
    assert stated == files - {"kvbench.methods.__init__"}
    for choice in choices("method"):
        assert (ROOT / "conf" / "method" / f"{choice.name}.yaml").is_file()
        if "_target_" in choice.config:
            assert choice.config["_target_"].split(".")[2] == choice.name
    named = [m for m in MODULES if not m.startswith("kvbench.methods")]
    for module in named:
        found = [name for name in imports_of(module) if name.startswith("kvbench.methods")]
        assert found == [], f"{module} knows a method by name"


def uses(pattern: str) -> list[str]:
    """The modules of the product in which a text stands."""
    return [m for m, path in MODULES.items() if pattern in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize(
    ("pattern", "home"),
    [
        ("from hydra._internal", "kvbench.config.hydra_private"),
        ("class_name_to_class", "kvbench.config.hydra_private"),
        ("job._return_value", "kvbench.config.hydra_private"),
        ("lm_eval._cli", "kvbench.lmeval.private"),
        ("_loglikelihood_tokens", "kvbench.lmeval.private"),
        ("add_env_info", "kvbench.lmeval.private"),
        ("module.apply_rotary_pos_emb", "kvbench.model.hooks"),
        ('"position_embeddings"', "kvbench.model.hooks"),
        ("unittest", None),
    ],
)
def test_private_names_of_others_stand_in_one_file(pattern: str, home: str | None) -> None:
    assert uses(pattern) == ([] if home is None else [home])


@pytest.mark.parametrize(
    ("distribution", "home"),
    [("hydra-core", hydra_private), ("lm-eval", lmeval_private), ("transformers", hooks)],
)
def test_private_names_were_seen_in_the_installed_release(distribution: str, home: Any) -> None:
    first, last = (tuple(map(int, text.split("."))) for text in home.SEEN)
    installed = tuple(map(int, version(distribution).split(".")[: len(first)]))
    assert first <= installed <= last, f"try {home.__name__} with this release, then widen SEEN"


def test_hydra_has_one_home() -> None:
    homes = {
        package_of(module)
        for module, path in MODULES.items()
        if "import hydra" in path.read_text(encoding="utf-8")
        or "from hydra" in path.read_text(encoding="utf-8")
    }
    assert homes <= {"config", "lmeval"}


def test_the_resolved_configuration_is_written_and_not_read() -> None:
    assert uses("plan.stated") == ["kvbench.run.result"]
    assert uses("plan.config[") == [] and uses("plan.config.get") == []


BRITISH = re.compile(
    r"\b\w*(?:quantis|normalis|localis|summaris|optimis|organis|recognis|initialis|tokenis|generalis"
    r"|specialis|materialis|serialis|penalis|characteris|memoris|minimis|maximis|randomis|realis"
    r"|utilis|vectoris|parallelis|analys(?:ed|ing)|behaviour|colour|favour|neighbour|honour"
    r"|centre|licence|artefact|(?:model|label|cancel|travel|signal)l(?:ed|ing)\b)\w*"
)


def test_spelling_is_american_throughout() -> None:
    found = []
    for folder in ("kvbench", "methods", "conf", "scripts", "tests", "results", ".ci", "."):
        deep = "*" if folder == "." else "**/*"
        for path in sorted((ROOT / folder).glob(deep)):
            if path.suffix not in (".py", ".yaml", ".md", ".toml", ".css", ".js", ".jinja", ".txt"):
                continue
            # Prose of others' kind, published words and this list itself.
            if path == Path(__file__).resolve() or {"samples", "runs", "checks"} & set(path.parts):
                continue
            if path.name == "CHANGELOG.md":
                continue
            text = path.read_text(encoding="utf-8")
            found += [f"{path.relative_to(ROOT)}: {word}" for word in BRITISH.findall(text)]
    assert found == []


def test_every_package_is_installed() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    packages = {module for module, path in MODULES.items() if path.name == "__init__.py"}
    listed = text.partition("packages = [")[2].partition("]")[0]
    for package in packages:
        assert f'"{package}"' in listed, f"{package} is missing from pyproject.toml"


def test_every_method_yaml_is_a_mapping() -> None:
    for path in (ROOT / "conf" / "method").glob("*.yaml"):
        assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)
