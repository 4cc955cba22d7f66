"""Counts the rooms of a checkout, the imports between them, and the circles they make.

    python scripts/structure.py [CHECKOUT]

A room is a file or a folder at the top of kvbench/, and methods/, conf/ and scripts/ are one each.
Imports count once for each pair of rooms, those for type checkers and inside functions too. A
circle is a set of modules that reach each other. Nothing of the checkout is run.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path


def modules(root: Path) -> dict[str, Path]:
    """Return dotted name -> file of every module of the product."""
    found = {
        ".".join(path.relative_to(root).with_suffix("").parts): path
        for path in sorted((root / "kvbench").rglob("*.py"))
    }
    found |= {f"kvbench.methods.{p.stem}": p for p in sorted((root / "methods").glob("*.py"))}
    return {name.removesuffix(".__init__"): path for name, path in found.items()}


def imported(name: str, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules of the product that a module imports."""
    for node in ast.walk(ast.parse(known[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = name.rpartition(".")[0] if node.level else ""
            source = ".".join(part for part in (base, node.module or "") if part)
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                if inner in known or source in known:
                    yield inner if inner in known else source


def room(name: str) -> str:
    """Return the room of a module: `base` of `kvbench.base.errors`."""
    return (*name.split("."), "")[1]


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return one circle after the other, each opened by leaving out its last import."""
    graph = {name: set(others) for name, others in graph.items()}
    found = []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            path = error.args[1]
            found.append(path)
            graph[path[1]].discard(path[0])
        else:
            return found


def main(root: Path) -> None:
    """Print what there is, one fact a line."""
    known = modules(root)
    graph = {name: {m for m in imported(name, known) if m != name} for name in known}
    names = {p.stem for p in (root / "kvbench").iterdir() if p.suffix == ".py" or p.is_dir()}
    top = {name for name in names if name not in ("__init__", "__pycache__")}
    pairs = {(room(a), room(b)) for a, others in graph.items() for b in others}
    lines = sum(len(p.read_text(encoding="utf-8").splitlines()) for p in known.values())
    print(f"rooms at the top: {len(top | {'methods', 'conf', 'scripts'})}")
    print(f"modules: {len(known)}, lines: {lines}")
    print(f"imports between rooms: {sum(a != b for a, b in pairs)}")
    print(f"circles of imports: {len(found := circles(graph))}")
    for path in found:
        print("  " + " <- ".join(path))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1])
