"""`kvbench check`."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from kvbench.base.errors import UserError
from kvbench.cli.app import app
from kvbench.cli.output import deliver, say


@app.command()
def check(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Narrow it, such as method=snapkv; with --update: what to run."),
    ] = None,
    baseline: Annotated[
        Path, typer.Option(help="Folder of the baseline; it says which words made it.")
    ] = Path("results/baselines/smollm2-135m"),
    update: Annotated[
        bool, typer.Option("--update", help="Make this run the baseline, and say what moved.")
    ] = False,
    changed: Annotated[
        float, typer.Option(min=0, max=1, help="Share of a variant's texts that may differ.")
    ] = 0.1,
    margin: Annotated[
        float, typer.Option(min=0, help="Points that a variant's mean score may fall.")
    ] = 1.0,
    junit: Annotated[Path | None, typer.Option(help="File to write as JUnit XML.")] = None,
    summary: Annotated[
        Path | None, typer.Option(help="File to append Markdown to: $GITHUB_STEP_SUMMARY.")
    ] = None,
) -> None:
    """Run a small sweep beside its baseline: exit code 0 holds, 1 regressed, 2 could not run.

    The default sweep takes every method at two budgets over samples of LongBench's kinds and the
    classic needle. Three comparisons decide: what is kept must be equal; texts may differ on a few
    samples, since another processor can flip a token; scores must not fall for certain, and the
    same text must score the same.
    """
    from kvbench.gate import texts
    from kvbench.gate.check import check_against
    from kvbench.gate.verdict import Tolerance

    with could_not_run():
        run, verdict = check_against(words or [], baseline, Tolerance(changed, margin), update)
    if verdict is None:
        typer.echo(f"{run} is the baseline {baseline} now")
        return
    colored = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    say(texts.verdict_text(verdict, baseline, run, colored))
    if junit is not None:
        deliver(texts.junit(verdict), junit)
    if summary is not None:
        deliver(texts.verdict_summary(verdict, baseline, run), summary, append=True)
    if update:
        typer.echo(f"{run} is the baseline {baseline} now")
    elif verdict.failed:
        raise typer.Exit(1)


@contextmanager
def could_not_run() -> Iterator[None]:
    """Exit 2, not 1, where the check itself breaks: 1 says that a method regressed."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        traceback.print_exc()
        raise typer.Exit(2) from error
