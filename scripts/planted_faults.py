"""Whether the regression gate and the quick tests catch faults, and stay green without any.

    python scripts/planted_faults.py --baseline results/baselines/smollm2-135m
    python scripts/planted_faults.py --tests

With `--tests` each of `TESTED_FAULTS` is planted alone in a copy of the code, on which the quick
tests of its module run; on what survives these, with `--whole`, all quick tests. Prints Markdown:
the test that caught the fault.

Without it each of `FAULTS` is planted alone in a copy of the code, where `kvbench check` then runs
in a process of its own. `--clean 5` adds runs of an unchanged copy, with 1 and 2 threads in turn.
Prints Markdown: which comparison caught the fault, on how many variants, the first problem it
named, and the wall seconds of the check. `--jobs 2` runs two checks at a time. Words at the end
narrow the sweep.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
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
    tests: str = ""
    """Files and folders in tests/ that could catch it; none: the gate is to."""


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


TESTED_FAULTS = (
    Fault(
        "ties in the rounding of layer budgets go to the later layer",
        "kvbench/compress/budget.py",
        "(floors[i] - shares[i], i))",
        "(floors[i] - shares[i], -i))",
        "compress/test_budget.py",
    ),
    Fault(
        "0.6 * 1000 tokens are 599",
        "kvbench/compress/budget.py",
        "return math.floor(x + 1e-9)",
        "return math.floor(x)",
        "compress/test_budget.py",
    ),
    Fault(
        "a budget of 1.0 is refused",
        "kvbench/compress/budget.py",
        "if 0 < x <= 1:",
        "if 0 < x < 1:",
        "compress/test_budget.py",
    ),
    Fault(
        "a share of a fraction is the fraction",
        "kvbench/compress/budget.py",
        "Budget(fraction=share * self.fraction)",
        "Budget(fraction=self.fraction)",
        "compress/test_budget.py",
    ),
    Fault(
        "a prompt of exactly the budget's tokens is compressed",
        "kvbench/compress/budget.py",
        "return self.tokens >= prompt_tokens",
        "return self.tokens > prompt_tokens",
        "compress/test_budget.py",
    ),
    Fault(
        "context of more tokens than the prompt has",
        "kvbench/compress/budget.py",
        "max(0.0, min(mean_tokens, tokens) - fits)",
        "max(0.0, mean_tokens - fits)",
        "compress/test_budget.py",
    ),
    Fault(
        "a line of layer budgets ends one step early",
        "kvbench/compress/budget.py",
        "(last - first) * i / (layers - 1)",
        "(last - first) * i / layers",
        "compress/test_budget.py",
    ),
    Fault(
        "a capped line loses its mean",
        "kvbench/compress/budget.py",
        "first, last = most, 2 * mean - most",
        "first = most",
        "compress/test_budget.py",
    ),
    Fault(
        "token budgets stand before shares in tables",
        "kvbench/compress/budget.py",
        "return self.tokens is not None, self.value",
        "return self.tokens is None, self.value",
        "compress/test_budget.py",
    ),
    Fault(
        "budgets met ten times as coarsely",
        "kvbench/compress/fit.py",
        "TOLERANCE = 0.004",
        "TOLERANCE = 0.04",
        "compress/test_fit.py",
    ),
    Fault(
        "saturated wherever the nominal budget is 1",
        "kvbench/compress/fit.py",
        "nominal == 1.0 and share < target - TOLERANCE",
        "nominal == 1.0",
        "compress/test_fit.py",
    ),
    Fault(
        "the last of the budgets tried, not the nearest",
        "kvbench/compress/fit.py",
        "if best is None or abs(share - target) < abs(best[1] - target):",
        "if True:",
        "compress/test_fit.py",
    ),
    Fault(
        "Formula 15 met in the other reading",
        "kvbench/compress/fit.py",
        "ratio_formula15_printed",
        "ratio_formula15",
        "compress/test_fit.py",
    ),
    Fault(
        "window scores are sums, not means",
        "kvbench/compress/scores.py",
        ": layer.tokens - window].mean(1)",
        ": layer.tokens - window].sum(1)",
        "compress/test_scores.py",
    ),
    Fault(
        "average pooling without its padding",
        "kvbench/compress/scores.py",
        "F.avg_pool1d(scores[None], kernel, stride=1, padding=kernel // 2)",
        "F.avg_pool1d(scores[None], kernel, 1, kernel // 2, count_include_pad=False)",
        "compress/test_scores.py",
    ),
    Fault(
        "heads=all takes the largest score",
        "kvbench/compress/scores.py",
        "scores.mean(0, keepdim=True)",
        "scores.amax(0, keepdim=True)",
        "compress/test_scores.py",
    ),
    Fault(
        "a method without a window keeps nothing of a tiny budget",
        "kvbench/compress/scoring.py",
        "max(1 - window, whole(context))",
        "whole(context)",
        "compress/test_scoring.py",
    ),
    Fault(
        "copies per query head are not paid for",
        "kvbench/compress/scoring.py",
        "layer.query_heads // layer.kv_heads if repeated else 1",
        "1",
        "compress/test_scoring.py",
    ),
    Fault(
        "kept_vectors of a union store halved",
        "kvbench/cache/rows.py",
        "sum(2 * p.numel() for p in self.places)",
        "sum(p.numel() for p in self.places)",
        "cache/test_rows.py",
    ),
    Fault(
        "stored_vectors of a union store halved",
        "kvbench/cache/rows.py",
        "sum(2 * b.k.shape[1] for b in self.groups)",
        "sum(b.k.shape[1] for b in self.groups)",
        "cache/test_rows.py",
    ),
    Fault(
        "positions of a union store uncounted",
        "kvbench/cache/rows.py",
        'parts["positions"] = tuple(b.positions for b in self.groups)',
        'parts["positions"] = ()',
        "cache/test_rows.py",
    ),
    Fault(
        "positions of the first band alone counted",
        "kvbench/cache/rows.py",
        'parts["positions"] = tuple(b.positions for b in self.bands)',
        'parts["positions"] = (self.bands[0].positions,)',
        "cache/test_rows.py",
    ),
    Fault(
        "65536 rows need indices of four bytes",
        "kvbench/cache/rows.py",
        "if count <= 65536 else torch.int32",
        "if count < 65536 else torch.int32",
        "cache/test_rows.py",
    ),
    Fault(
        "ragged rows never hold positions",
        "kvbench/cache/rows.py",
        "return RowStore(tuple(bands), layer.rule.sliding_window is not None)",
        "return RowStore(tuple(bands))",
        "cache/test_rows.py",
    ),
    Fault(
        "a whole cache counts positions that decoding knows",
        "kvbench/cache/rows.py",
        "layer.positions is not None and layer.rule.sliding_window is not None",
        "layer.rule.sliding_window is not None",
        "cache/test_rows.py",
    ),
    Fault(
        "stored_vectors of a codebook without the window",
        "kvbench/cache/codebook.py",
        "return entries + 2 * len(self.positions) * self.window.k.shape[1]",
        "return entries",
        "cache/test_codebook.py cache/test_ledger.py",
    ),
    Fault(
        "kept_vectors of a codebook without the window",
        "kvbench/cache/codebook.py",
        "return self.references + 2 * self.heads * self.window.k.shape[1]",
        "return self.references",
        "cache/test_codebook.py cache/test_ledger.py",
    ),
    Fault(
        "norms counted where magnitudes are off",
        "kvbench/cache/codebook.py",
        "return int(self.key_books[0].norms is not None)",
        "return 1",
        "cache/test_codebook.py cache/test_ledger.py",
    ),
    Fault(
        "absorbed vectors point into the old entries",
        "kvbench/cache/codebook.py",
        "at[rest] = refs + len(self.entries)",
        "at[rest] = refs",
        "cache/test_codebook.py cache/test_ledger.py",
    ),
    Fault(
        "ties of the cover go to the lower position before the lower head",
        "kvbench/cache/cover.py",
        "np.lexsort((np.arange(n), heads))",
        "np.lexsort((heads, np.arange(n)))",
        "cache/test_cover.py",
    ),
    Fault(
        "codes rounded down",
        "kvbench/cache/quantized.py",
        "flat = away.round()",
        "flat = away.floor()",
        "cache/test_quantized.py",
    ),
    Fault(
        "bytes of codes rounded down",
        "kvbench/cache/quantized.py",
        "total += -(-part * bits // 8)",
        "total += part * bits // 8",
        "cache/test_quantized.py",
    ),
    Fault(
        "Formula 15 with a norm for each reference always",
        "kvbench/cache/ledger.py",
        "(index_bits / key_bits + norms)",
        "(index_bits / key_bits + 1)",
        "cache/test_ledger.py",
    ),
    Fault(
        "kept tokens of the distinct vectors",
        "kvbench/cache/ledger.py",
        "s.kept_vectors / 2 / s.heads",
        "s.stored_vectors / 2 / s.heads",
        "cache/test_ledger.py",
    ),
    Fault(
        "Formula 15 with two-byte numbers always",
        "kvbench/cache/ledger.py",
        "key_bits=8 * layer.k.element_size()",
        "key_bits=16",
        "cache/test_ledger.py",
    ),
    Fault(
        "every kept vector counted as a reference",
        "kvbench/cache/ledger.py",
        "referenced = references / kept if kept else 0.0",
        "referenced = 1.0 if references else 0.0",
        "cache/test_ledger.py",
    ),
    Fault(
        "a span one token too long",
        "kvbench/cache/spans.py",
        "(band.positions < end)",
        "(band.positions <= end)",
        "cache/test_rows.py",
    ),
    Fault(
        "shares of a span rounded to one place",
        "kvbench/cache/spans.py",
        "round(share, 4)",
        "round(share, 1)",
        "cache/test_rows.py",
    ),
    Fault(
        "a leading newline ends what other leading newlines began",
        "kvbench/decode/greedy.py",
        "self.leading_ids.issuperset(written)",
        "not written",
        "decode/test_greedy.py",
    ),
    Fault(
        "one token more before a stop may come",
        "kvbench/decode/greedy.py",
        "len(self.written) < self.stop.min_new_tokens",
        "len(self.written) <= self.stop.min_new_tokens",
        "decode/test_greedy.py",
    ),
    Fault(
        "one token too many generated",
        "kvbench/decode/greedy.py",
        "len(mine.written) >= mine.stop.max_new_tokens",
        "len(mine.written) > mine.stop.max_new_tokens",
        "decode/test_greedy.py",
    ),
    Fault(
        "decode_bytes as it was at the start",
        "kvbench/decode/greedy.py",
        "max(mine.most_bytes, self._batch.nbytes(row))",
        "mine.most_bytes",
        "decode/test_greedy.py",
    ),
    Fault(
        "each row counts a step's whole time",
        "kvbench/decode/greedy.py",
        "seconds = (time.perf_counter() - started) / len(rows)",
        "seconds = time.perf_counter() - started",
        "decode/test_greedy.py",
    ),
    Fault(
        "a sliding window one token too wide",
        "kvbench/decode/reading.py",
        "(positions <= query_at - sliding_window)",
        "(positions < query_at - sliding_window)",
        "decode/test_reading.py",
    ),
    Fault(
        "lanes read the KV heads of the first",
        "kvbench/decode/reading.py",
        "(self.first_query + heads * self.readers) // self.group",
        "heads * self.readers // self.group",
        "decode/test_reading.py",
    ),
    Fault(
        "classification drops every part of the true name",
        "kvbench/tasks/metrics.py",
        "for name in found:",
        "for name in list(found):",
        "tasks/test_metrics.py",
    ),
    Fault(
        "lsht scored beyond its first line",
        "kvbench/tasks/metrics.py",
        'frozenset({"trec", "triviaqa", "samsum", "lsht"})',
        'frozenset({"trec", "triviaqa", "samsum"})',
        "tasks/test_metrics.py",
    ),
    Fault(
        "count over distinct numbers",
        "kvbench/tasks/metrics.py",
        "/ len(numbers) if numbers",
        "/ len(set(numbers)) if numbers",
        "tasks/test_metrics.py",
    ),
    Fault(
        "comments count as code",
        "kvbench/tasks/metrics.py",
        'if "`" not in x and "#" not in x and',
        'if "`" not in x and',
        "tasks/test_metrics.py",
    ),
    Fault(
        "edit similarity with its sides exchanged",
        "kvbench/tasks/metrics.py",
        "SequenceMatcher(None, line, answer)",
        "SequenceMatcher(None, answer, line)",
        "tasks/test_metrics.py",
    ),
    Fault(
        "rouge_failed counts instead of a share",
        "kvbench/tasks/metrics.py",
        "failed = sum(failure for _, failure in tries) / len(tries)",
        "failed = float(sum(failure for _, failure in tries))",
        "tasks/test_metrics.py",
    ),
    Fault(
        "8000 words are in the middle bucket",
        "kvbench/tasks/metrics.py",
        "if length < 8000",
        "if length <= 8000",
        "tasks/test_metrics.py",
    ),
    Fault(
        "the best reference replaced by the last",
        "kvbench/tasks/metrics.py",
        "return {metric: max(values)}",
        "return {metric: values[-1]}",
        "tasks/test_metrics.py",
    ),
    Fault(
        "the last success of a key, not the first",
        "kvbench/records/reader.py",
        "(before[1].error is not None and record.error is None)",
        "record.error is None",
        "records/test_records.py",
    ),
    Fault(
        "what succeeded later counts as failed",
        "kvbench/records/reader.py",
        "if r.error} - done_keys(out)",
        "if r.error}",
        "records/test_records.py",
    ),
    Fault(
        "scores that differ by less than a tenth are the same",
        "kvbench/records/rescore.py",
        "abs(value - record.score) > 1e-12",
        "abs(value - record.score) > 0.1",
        "records/test_records.py",
    ),
    Fault(
        "sums of summaries forget what was known",
        "kvbench/records/summary.py",
        "self.known + other.known",
        "self.known",
        "records/test_records.py",
    ),
    Fault(
        "a lone surrogate cannot be written",
        "kvbench/records/writer.py",
        'errors="replace"',
        'errors="strict"',
        "records/test_records.py",
    ),
    Fault(
        "a torn line stays in the shard",
        "kvbench/records/writer.py",
        "os.ftruncate(shard, before)",
        "before",
        "records/test_records.py",
    ),
    Fault(
        "90% intervals",
        "kvbench/report/table/stats.py",
        "CONFIDENCE = 0.95",
        "CONFIDENCE = 0.90",
        "report/table/test_stats.py",
    ),
    Fault(
        "corrected p-values out of order",
        "kvbench/report/table/stats.py",
        "largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))",
        "largest = min(1.0, (len(p_values) - rank) * p_values[i])",
        "report/table/test_stats.py",
    ),
    Fault(
        "a p-value of zero",
        "kvbench/report/table/stats.py",
        "return (extreme + 1) / (SIGN_PATTERNS + 1)",
        "return extreme / SIGN_PATTERNS",
        "report/table/test_stats.py",
    ),
    Fault(
        "an interval of one sample",
        "kvbench/report/table/stats.py",
        "min(map(len, strata)) < 2",
        "min(map(len, strata)) < 1",
        "report/table/test_stats.py",
    ),
    Fault(
        "tasks weigh as much as they have samples",
        "kvbench/report/table/stats.py",
        "np.asarray(values) / len(values) for values in pairs",
        "np.asarray(values) for values in pairs",
        "report/table/test_stats.py",
    ),
    Fault(
        "patterns that tie are lost to rounding",
        "kvbench/report/table/stats.py",
        "observed = abs(weighted.sum()) * (1 - 1e-9)",
        "observed = abs(weighted.sum())",
        "report/table/test_stats.py",
    ),
    Fault(
        "all tasks draw the same samples",
        "kvbench/report/table/stats.py",
        "default_rng([stratum, samples])",
        "default_rng([samples])",
        "report/table/test_stats.py",
    ),
)
"""Those that tests catch, which the gate need not."""


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
    """Copy the code as a wheel lays it out, with the fault in it."""
    unseen = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "kvbench", folder / "kvbench", ignore=unseen)
    for inside in ("methods", "conf"):
        # A checkout may link them into the package.
        to = folder / "kvbench" / inside
        shutil.copytree(ROOT / inside, to, ignore=unseen, dirs_exist_ok=True)
    if fault is not None:
        file = folder / "kvbench" / fault.path.removeprefix("kvbench/")
        file.write_text(faulty(fault), encoding="utf-8")
    return folder


def faulty(fault: Fault) -> str:
    """Return the text of a file with the fault in it.

    Raises:
        SystemExit: the text to replace does not stand there once, so the list must be mended.
    """
    text = (ROOT / fault.path).read_text(encoding="utf-8")
    if text.count(fault.right) != 1:
        raise SystemExit(f"{fault.path} does not hold {fault.right!r} once: mend FAULTS")
    return text.replace(fault.right, fault.wrong)


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


def caught_by(fault: Fault, whole: bool) -> str | None:
    """Return the quick test that fails on a copy of the code with the fault; None: it survives."""
    with tempfile.TemporaryDirectory() as name:
        folder = planted(fault, Path(name, "code"))
        rounds = [[f"tests/{place}" for place in fault.tests.split()], ["tests"]]
        for places in rounds[: 1 + whole]:
            said = Path(name, "said.txt")
            # What the tests import is loaded once; kvbench itself is loaded by each child.
            child = multiprocessing.get_context("fork").Process(
                target=_test, args=(folder, places, said)
            )
            child.start()
            child.join()
            text = said.read_text(encoding="utf-8")
            found = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", text, re.M)
            if found is not None:
                return found[1].removeprefix("tests/")
            if child.exitcode != 0:
                raise SystemExit(f"the tests could not run on {fault.name!r}:\n{text}")
    return None


def _test(code: Path, places: Sequence[str], said: Path) -> None:
    import pytest

    os.chdir(ROOT)
    sys.path.insert(0, str(code))
    os.environ["PYTHONPATH"] = str(code)
    with said.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        import kvbench

        assert str(kvbench.__file__).startswith(str(code)), kvbench.__file__
        words = ["-x", "-q", "--tb=no", "-m", "not slow", "-o", "timeout=120"]
        words += ["-p", "no:xdist", "-p", "no:cacheprovider", "--color=no"]
        code_of_exit = pytest.main([*words, *places])
        sys.stdout.flush()
    os._exit(int(code_of_exit))


def _print_tested(faults: Sequence[Fault], whole: bool) -> None:
    for module in ("torch", "transformers", "pytest", "typer", "numpy", "hypothesis", "hydra"):
        importlib.import_module(module)
    print("| fault | file | caught by |\n|---|---|---|", flush=True)
    survived = 0
    for fault in faults:
        test = caught_by(fault, whole)
        survived += test is None
        told = "**not caught**" if test is None else f"`{test}`"
        print(f"| {fault.name} | `{fault.path}` | {told} |", flush=True)
    print(f"\n{len(faults) - survived} of {len(faults)} faults caught")


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
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--baseline", type=Path)
    what.add_argument("--tests", action="store_true", help="the quick tests, not the gate")
    parser.add_argument("--whole", action="store_true", help="all quick tests on what survives")
    parser.add_argument("--only", help="faults whose name holds this text")
    parser.add_argument("--clean", type=int, default=0, help="runs without a fault")
    parser.add_argument("--jobs", type=int, default=1, help="checks at a time")
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args()
    listed = TESTED_FAULTS if arguments.tests else FAULTS
    faults = [fault for fault in listed if (arguments.only or "") in fault.name]
    if arguments.tests:
        _print_tested(faults, arguments.whole)
        return
    baseline = arguments.baseline.resolve()
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
