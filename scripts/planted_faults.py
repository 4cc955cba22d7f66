"""Whether the regression gate catches faults, and stays green without any.

    python scripts/planted_faults.py --baseline results/baselines/smollm2-135m

Each fault is planted alone in a copy of the code, where `kvbench check` then runs in a process of
its own. `--clean 5` adds runs of an unchanged copy, with 1 and 2 threads in turn. Prints Markdown:
which comparison caught the fault, on how many variants, the first problem it named, and the wall
seconds of the check. `--jobs 2` runs two checks at a time. Words at the end narrow the sweep.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Fault:
    """One change of one file."""

    name: str
    path: str
    right: str
    """Stands in the file exactly once."""
    wrong: str


FAULTS = (
    Fault(
        "positions of generated tokens shifted by one",
        "kvbench/decode/greedy.py",
        "ids[row, 0], at[row, 0] = self._mine(row).next_token, self._mine(row).position",
        "ids[row, 0], at[row, 0] = self._mine(row).next_token, self._mine(row).position + 1",
    ),
    Fault(
        "rebuilt keys without RoPE",
        "kvbench/decode/cpu_kernels.py",
        "turned, turning = cos.shape[1], (cos.data_ptr(), sin.data_ptr(), cos.stride(0))",
        "turned = 0",
    ),
    Fault(
        "scores of the layer before",
        "kvbench/compress/scoring.py",
        "with_window(self.rows_to_keep(layer, window, context)",
        "with_window(self.rows_to_keep(prefill.layers[len(layers) - 1], window, context)",
    ),
    Fault(
        "budget one token too large",
        "kvbench/compress/budget.py",
        "return self.fraction * prompt_tokens / copies",
        "return self.fraction * prompt_tokens / copies + 1",
    ),
    Fault(
        "window not kept",
        "kvbench/compress/scoring.py",
        "rows = with_window(self.rows_to_keep(layer, window, context), layer.tokens, window)",
        "rows = self.rows_to_keep(layer, window, context + window)",
    ),
    Fault(
        "query heads grouped in the wrong order",
        "kvbench/compress/scores.py",
        "scores.reshape(kv_heads, query_heads // kv_heads, rows).mean(1)",
        "scores.reshape(query_heads // kv_heads, kv_heads, rows).mean(0)",
    ),
    Fault(
        "metric without lower-casing",
        "kvbench/tasks/metrics.py",
        'return _ARTICLES.sub(" ", text.lower().translate(',
        'return _ARTICLES.sub(" ", text.translate(',
    ),
    Fault(
        "theta 0.9 instead of 0.98",
        "methods/spindlekv.py",
        "theta_key, theta_value = self.theta_key, self.theta_value",
        "theta_key, theta_value = 0.9, self.theta_value",
    ),
    Fault(
        "prompts truncated at the end",
        "kvbench/tasks/prompt.py",
        "first, last = tokens.ids[:half], tokens.ids[-half:]",
        "first, last = tokens.ids[:half], tokens.ids[half : 2 * half]",
    ),
)


@dataclass(frozen=True)
class Outcome:
    """What one check said."""

    code: int
    problems: dict[str, dict[str, str]]
    """Comparison -> variant -> first problem; only those that found one."""
    outcome: str
    """The check's own line."""
    seconds: float


def planted(fault: Fault | None, folder: Path) -> Path:
    """Copy the code as a wheel lays it out, with the fault in it.

    Raises:
        SystemExit: the text to replace does not stand there once, so the list must be mended.
    """
    unseen = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "kvbench", folder / "kvbench", ignore=unseen)
    for inside in ("methods", "conf"):
        shutil.copytree(ROOT / inside, folder / "kvbench" / inside, ignore=unseen)
    if fault is not None:
        file = folder / "kvbench" / fault.path.removeprefix("kvbench/")
        text = file.read_text(encoding="utf-8")
        if text.count(fault.right) != 1:
            raise SystemExit(f"{fault.path} does not hold {fault.right!r} once: mend FAULTS")
        file.write_text(text.replace(fault.right, fault.wrong), encoding="utf-8")
    return folder


def checked(fault: Fault | None, baseline: Path, threads: int, words: Sequence[str]) -> Outcome:
    """Run the gate on a copy of the code with the fault, in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = planted(fault, Path(name, "code"))
        junit = Path(name, "junit.xml")
        command = [sys.executable, "-m", "kvbench", "check", *words]
        command += ["--baseline", str(baseline), "--junit", str(junit)]
        paths = {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": str(threads)}
        started = time.monotonic()
        done = subprocess.run(
            command, cwd=name, env={**os.environ, **paths}, capture_output=True, text=True
        )
        seconds = time.monotonic() - started
        said = re.findall(r"^(?:holds|\d+ of \d+ variants regressed):.*$", done.stdout, re.M)
        if not said or not junit.exists():
            raise SystemExit(f"the check could not run:\n{done.stdout}\n{done.stderr}")
        return Outcome(done.returncode, _problems(junit), said[-1], seconds)


def _problems(junit: Path) -> dict[str, dict[str, str]]:
    suites = ElementTree.parse(junit).getroot()
    return {
        str(suite.get("name")): {
            str(case.get("name")): str(failure.get("message"))
            for case in suite
            for failure in case.iter("failure")
        }
        for suite in suites
        if suite.get("failures") != "0"
    }


def _fault_line(fault: Fault, outcome: Outcome) -> str:
    caught = ", ".join(f"{name} ({len(found)})" for name, found in outcome.problems.items())
    first = next((f"{v}: {p}" for c in outcome.problems.values() for v, p in c.items()), "")
    return f"| {fault.name} | {caught or '**not caught**'} | {first} | {outcome.seconds:.0f} |"


def main() -> None:
    """Print a Markdown table of the faults and one of the runs without a fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--baseline", type=Path, required=True)
    parser.add_argument("--only", help="faults whose name holds this text")
    parser.add_argument("--clean", type=int, default=0, help="runs without a fault")
    parser.add_argument("--jobs", type=int, default=1, help="checks at a time")
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args()
    baseline = arguments.baseline.resolve()
    faults = [fault for fault in FAULTS if (arguments.only or "") in fault.name]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        found = pool.map(lambda fault: checked(fault, baseline, 1, arguments.words), faults)
        print("| fault | caught by (variants) | first problem | seconds |\n|---|---|---|---:|")
        for fault, outcome in zip(faults, found, strict=True):
            print(_fault_line(fault, outcome), flush=True)
    missed = 0
    if arguments.clean:
        print("\n| run without a fault | threads | seconds |\n|---|---:|---:|")
    for i in range(arguments.clean):
        threads = 1 + i % 2
        outcome = checked(None, baseline, threads, arguments.words)
        missed += outcome.code != 0
        print(f"| {outcome.outcome} | {threads} | {outcome.seconds:.0f} |", flush=True)
    if arguments.clean:
        print(f"\n{missed} false alarms in {arguments.clean} runs")


if __name__ == "__main__":
    main()
