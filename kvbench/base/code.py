"""What code does, whatever it says: fingerprints of modules and of the modules they import.

Comments, docstrings, layout and imports for type checkers alone change no fingerprint. Reads source
files; imports no module but the packages above it.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@lru_cache
def reached_modules(roots: tuple[str, ...], within: tuple[str, ...]) -> tuple[str, ...]:
    """Return the modules that some modules import, directly or not, and themselves; sorted.

    Args:
        roots: names of modules.
        within: modules, or packages with all they hold, beyond which no import is followed.
    """
    found: set[str] = set()
    waiting = [name for name in roots if _is_within(name, within)]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        waiting += imported_modules(source_of(name), within, package=name.rpartition(".")[0])
    return tuple(sorted(found))


def imported_modules(
    path: Path | None, within: Sequence[str], package: str | None = None
) -> list[str]:
    """Return the names of the modules inside `within` that a source file imports anywhere.

    Args:
        path: the file; None imports nothing.
        within: modules or packages.
        package: where the file stands, for imports from `.`; None: these are left out.
    """
    if path is None:
        return []
    found = []
    for name, member in _imports(_parsed(path), package):
        inner = f"{name}.{member}" if member else name
        for module in (inner, name):
            if _is_within(module, within) and source_of(module) is not None:
                found.append(module)
                break
    return found


@lru_cache
def code_digest(modules: tuple[str, ...]) -> str:
    """Fingerprint of what some modules do: blake2b, 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for name in modules:
        digest.update(f"{name}\n{file_code(source_of(name))}\n".encode())
    return digest.hexdigest()


def file_code(path: Path | None) -> str:
    """Return the statements of a source file, without comments and docstrings."""
    return "" if path is None else bare_code(path.read_text(encoding="utf-8"))


def bare_code(text: str) -> str:
    """Return the statements of a source text, without comments, docstrings and layout."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED):
            kept = [statement for statement in node.body if not _is_text(statement)]
            node.body = kept or [ast.Pass()]
    return ast.unparse(tree)


@lru_cache
def source_of(module: str) -> Path | None:
    """Return the file of a module; None where it has none, or is not there."""
    try:
        spec = find_spec(module)
    except (ImportError, AttributeError, ValueError):
        return None
    origin = None if spec is None else spec.origin
    return Path(origin) if origin and origin.endswith(".py") else None


def release_of(distribution: str) -> str | None:
    """Return the release of an installed distribution, without its build: 2.13.0 of 2.13.0+cpu."""
    try:
        return version(distribution).partition("+")[0]
    except PackageNotFoundError:
        return None


@lru_cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _imports(tree: ast.AST, package: str | None) -> Iterator[tuple[str, str]]:
    """Yield the module and the member of each import, those for type checkers left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level == 1 and package is not None:
                module = f"{package}.{module}".rstrip(".")
            if module and (not node.level or package is not None):
                yield from ((module, alias.name) for alias in node.names)
        else:
            yield from _imports(node, package)


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _is_within(module: str, within: Sequence[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in within)
