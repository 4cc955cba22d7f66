"""What the regression gate says: a table and lines for people, JUnit XML for machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from kvbench.gate.verdict import COMPARISONS, Check, Verdict
from kvbench.report.forms.markdown import markdown
from kvbench.report.forms.terminal import terminal
from kvbench.report.sheet import Heading, Sheet, SheetRow, cells


def verdict_lines(verdict: Verdict, baseline: Path, run: Path) -> list[str]:
    """Return the outcome, a line for each problem, and the command that shows the samples."""
    variants = len(verdict.pairs)
    pairs = sum(map(len, verdict.pairs.values()))
    regressed = dict.fromkeys(check.variant for check in verdict.failed)
    outcome = f"{len(regressed)} of {variants} variants regressed" if regressed else "holds"
    lines = [
        f"{outcome}: {pairs} results of {variants} variants beside {baseline},"
        f" {verdict.changed_predictions} predictions differ",
        *(f"{c.variant}, {c.comparison}: {text}" for c in verdict.failed for text in c.problems),
    ]
    if verdict.added:
        lines.append(f"not in the baseline: {', '.join(verdict.added)}; --update adds them")
    if regressed or verdict.changed_predictions:
        lines.append(f"the samples: kvbench compare {baseline} {run}")
    return lines


def verdict_text(verdict: Verdict, baseline: Path, run: Path, colored: bool) -> str:
    """Return the table of what moved and the lines below it, for a terminal."""
    lines = "\n".join(verdict_lines(verdict, baseline, run)) + "\n"
    moved = _moved(verdict)
    return f"{terminal([moved], colored)}\n{lines}" if moved.rows else lines


def verdict_summary(verdict: Verdict, baseline: Path, run: Path) -> str:
    """Return the same as Markdown, for a summary of GitHub Actions."""
    outcome, *lines = verdict_lines(verdict, baseline, run)
    moved = _moved(verdict)
    said = "".join(f"- {line}\n" for line in lines)
    table = f"\n{markdown([moved])}" if moved.rows else ""
    return f"### kvbench check: {outcome}\n\n{said}{table}\n"


def junit(verdict: Verdict) -> str:
    """Return JUnit XML: a suite for each comparison, a test case for each variant in it."""
    root = ElementTree.Element("testsuites", name="kvbench check")
    for comparison in COMPARISONS:
        checks = [check for check in verdict.checks if check.comparison == comparison]
        failures = str(sum(bool(check.problems) for check in checks))
        suite = ElementTree.SubElement(
            root, "testsuite", name=comparison, tests=str(len(checks)), failures=failures
        )
        for check in checks:
            name = f"kvbench.check.{comparison}"
            case = ElementTree.SubElement(suite, "testcase", classname=name, name=check.variant)
            if check.problems:
                failure = ElementTree.SubElement(case, "failure", message=_xml(check.problems[0]))
                failure.text = _xml("\n".join(check.problems))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _moved(verdict: Verdict) -> Sheet:
    """The variants of which anything changed."""
    names = ("variant", "samples", *COMPARISONS, "same text", "before", "after", "p")
    return Sheet(
        title="what moved",
        headings=tuple(Heading(name) for name in names),
        rows=tuple(
            SheetRow(cells(*_texts(verdict, variant)))
            for variant, pairs in verdict.pairs.items()
            if any(c.problems for c in _of(verdict, variant))
            or not all(pair.same_prediction for pair in pairs)
        ),
        notes=(
            "Scores x100, mean over suites; p of the paired difference by sign flips, corrected"
            " for all variants (Holm).",
        ),
    )


def _of(verdict: Verdict, variant: str) -> list[Check]:
    return [check for check in verdict.checks if check.variant == variant]


def _texts(verdict: Verdict, variant: str) -> Iterator[str]:
    pairs = verdict.pairs[variant]
    yield from (variant, str(len(pairs)))
    yield from ("moved" if check.problems else "holds" for check in _of(verdict, variant))
    yield f"{sum(pair.same_prediction for pair in pairs)}/{len(pairs)}"
    if fall := verdict.falls.get(variant):
        yield f"{fall.before:.2f}"
        yield f"{fall.before + fall.difference.mean:.2f}"
        yield f"{fall.corrected_p:.3f}"
    else:
        yield from "---"


def _xml(text: str) -> str:
    """Text without the characters that XML cannot hold."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in text)
