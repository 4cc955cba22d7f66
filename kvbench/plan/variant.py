"""One method at one budget, a row of the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kvbench.base.hashing import fingerprint
from kvbench.classifier.trained import ORACLE, classifier_digest
from kvbench.compress.budget import Budget
from kvbench.compress.method import Method
from kvbench.plan.keys import method_code, method_parts, road_code


@dataclass(frozen=True)
class Variant:
    """One method at one budget, a row of the table."""

    series: str
    """What the variant shares with itself at other budgets: `spindlekv`, with changed fields
    `spindlekv[beta=0.1]`."""
    choice: str
    """File stem in conf/method, or a class's name in lower case where it has no file there."""
    method: Method
    config: Mapping[str, Any]
    """The method's fields as configured, JSON-able."""
    budget: Budget
    is_baseline: bool = False
    """Whether every other variant is compared with it; its budget then says nothing."""

    @property
    def label(self) -> str:
        """Unique in the run: `spindlekv@0.2`, with changed fields: `spindlekv@0.2[beta=0.1]`."""
        if self.is_baseline:
            return self.series
        return f"{self.choice}@{self.budget}{self.series.removeprefix(self.choice)}"

    @cached_property
    def digest(self) -> str:
        """Fingerprint of the class, its fields, source code and classifiers, and the budget."""
        parts = [method_parts(self.method), self.budget.unit, self.budget.value]
        trained = sorted(self.method.needs.classifiers - {ORACLE})
        return fingerprint(parts + [classifier_digest(folder) for folder in trained])

    @cached_property
    def code(self) -> str:
        """Fingerprints of the code that makes its results: the road's and the method's own."""
        return f"{road_code()[:12]}.{method_code(self.method)[:12]}"
