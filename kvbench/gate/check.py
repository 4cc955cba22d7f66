"""The regression gate: a small sweep, run afresh and compared with a baseline on disk.

A baseline is a run folder that also says which words made it, so that a check repeats them.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from kvbench.api import run_words
from kvbench.base.errors import UserError
from kvbench.config.catalog import stated_methods
from kvbench.gate.verdict import Tolerance, Verdict, judged
from kvbench.records.reader import Shard, read_shards

SWEEP = ("check-samples", "check-needle")
"""The default sweep: presets in conf/experiment, each with every method."""

RUNS = Path("results", "checks")

_WORDS = "check.json"


def check_against(
    words: Sequence[str], baseline: Path, tolerance: Tolerance, update: bool
) -> tuple[Path, Verdict | None]:
    """Run the sweep of a baseline and compare; with `update`, make the run the baseline then.

    Args:
        words: of a run, as after `kvbench run`. A check adds them to each run of its baseline and
            judges only what is left, such as `method=snapkv`; an update runs them instead.
        baseline: folder.
        tolerance: what may change.
        update: the folder need not exist.

    Returns:
        The run folder, and the verdict; None where there was no baseline.

    Raises:
        UserError: a word is wrong, there is no baseline to check, or a result of an update failed.
    """
    known = (baseline / _WORDS).is_file()
    given = [list(words)] if update and words else None
    runs = given or (sweep_of(baseline) if known or not update else None)
    more = [] if update else list(words)
    run = _run([_narrowed(of_one, more) for of_one in runs or default_sweep()])
    verdict = judged(baseline, run, tolerance, narrowed=bool(more)) if known else None
    if update:
        _write(baseline, run, runs)
    return run, verdict


def _narrowed(words: Sequence[str], more: Sequence[str]) -> list[str]:
    """The words of a baseline's run, those left out that further ones replace."""
    replaced = {word.partition("=")[0] for word in more}
    return [*(word for word in words if word.partition("=")[0] not in replaced), *more]


def default_sweep() -> list[list[str]]:
    """Return the words of the default sweep's runs."""
    methods = f"method={','.join(stated_methods())}"
    return [[f"experiment={preset}", methods] for preset in SWEEP]


def sweep_of(baseline: Path) -> list[list[str]] | None:
    """Return the words that made a baseline, a list for each run; None: the default sweep.

    Raises:
        UserError: the folder is not a baseline.
    """
    try:
        runs = json.loads((baseline / _WORDS).read_text(encoding="utf-8"))["runs"]
    except FileNotFoundError as error:
        raise UserError(
            f"{baseline} is not a baseline: kvbench check --update --baseline {baseline} makes one"
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{baseline / _WORDS} cannot be read: make it with --update") from error
    if runs is not None and not (isinstance(runs, list) and all(map(_are_words, runs))):
        raise UserError(f"{baseline / _WORDS} holds no lists of words: make it with --update")
    return runs


def _are_words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _run(runs: Sequence[Sequence[str]]) -> Path:
    """Run into a new folder, so that nothing recorded before can stand in for a result."""
    out = RUNS / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(2)}"
    for words in runs:
        run_words([*words, f"out={out}"])  # the comparison says which results failed
    return out


def _write(baseline: Path, run: Path, runs: list[list[str]] | None) -> None:
    """Make a run the baseline; the one that was there stays whole until the new one is."""
    shards = read_shards(run)
    failed = sum(record.error is not None for shard in shards for record in shard.records)
    if failed:
        raise UserError(f"{failed} results of {run} failed: no baseline was written")
    if baseline.exists() and not (baseline / _WORDS).is_file():
        raise UserError(f"{baseline} is not a baseline, and would be replaced: give another folder")
    fresh = baseline.with_name(f".{baseline.name}-{secrets.token_hex(3)}")
    try:
        _copy(shards, runs, fresh)
        if baseline.exists():
            old = fresh.with_name(f"{fresh.name}-old")
            baseline.rename(old)
            fresh.rename(baseline)
            shutil.rmtree(old)
        else:
            fresh.rename(baseline)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise UserError(
            f"cannot write {baseline} ({error.strerror}): give another folder"
        ) from error


def _copy(shards: Sequence[Shard], runs: list[list[str]] | None, folder: Path) -> None:
    folder.mkdir(parents=True)
    for number, shard in enumerate(shards, 1):
        shutil.copyfile(shard.path, folder / f"{number}-{shard.header.suite}.jsonl")
    text = json.dumps({"runs": runs}, indent=1)
    (folder / _WORDS).write_text(text + "\n", encoding="utf-8")
