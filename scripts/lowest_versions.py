"""Print the lowest versions that pyproject.toml declares, as constraints for pip.

    make lowest                      # a fresh environment of these versions, and the quick tests
    make lowest TORCH=torch==2.6.0   # with another torch than constraints.txt pins

torch is not among them: the Makefile installs it first, and its older builds on PyPI bring all of
CUDA along.
"""

from __future__ import annotations

from pathlib import Path

import tomllib
from packaging.requirements import Requirement

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def lowest_versions(pyproject: str) -> list[str]:
    """Return `name==version` of every dependency, extras included, that states a lowest version."""
    project = tomllib.loads(pyproject)["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    found = {
        requirement.name: bound.version
        for requirement in (Requirement(text) for texts in lists for text in texts)
        for bound in requirement.specifier
        if bound.operator in (">=", "==")
    }
    return [f"{name}=={version}" for name, version in found.items() if name != "torch"]


if __name__ == "__main__":
    print("\n".join(lowest_versions(PYPROJECT.read_text(encoding="utf-8"))))
