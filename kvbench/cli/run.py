"""`kvbench run`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kvbench.base.errors import UserError
from kvbench.cli.app import app
from kvbench.cli.completion import words_that_begin
from kvbench.cli.output import say
from kvbench.records.summary import Summary

if TYPE_CHECKING:
    from kvbench.config.sweeper import JobResult


@app.command(context_settings={"ignore_unknown_options": True})
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="Overrides and Hydra's flags.", autocompletion=words_that_begin),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Compute again what failed before.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would run, and about how long it takes.")
    ] = False,
) -> None:
    """Evaluate methods on a model: words such as method=spindlekv budget=0.2,0.4 data=sample.

    \b
    model=NAME, model.path=PATH    what runs; kvbench list models
    task=NAME, data=NAME|FOLDER    what it is asked; kvbench list tasks
    method=NAME, method.FIELD=...  what compresses; kvbench list methods
    budget=0.2 or budget=512       what is kept: a share of the bytes, or tokens
    protocol=official|paper        how prompts, stops and scores are made
    limit=N, out=FOLDER            first records of each task; where records go

    \b
    kvbench run method=spindlekv,snapkv budget=0.2,0.4 limit=1
    kvbench run model=llama3-8b-instruct data=hub protocol=paper
    kvbench run task=needle needle.lengths=[512,1024] method=snapkv

    Every word is a Hydra override of conf/config.yaml or of a config group (model, task, method,
    protocol, experiment); a comma sweeps. FullKV runs beside as the baseline (baseline=false
    leaves it out). A second run of the same words does only what is missing. An experiment is run
    as its paper did: by LongBench, lm-eval, a measurement of speed, ... Hydra's own flags
    pass through after the words: --cfg job prints the configuration, --config-dir DIR adds yours,
    --hydra-help says more. `kvbench show` prints every word, `kvbench show method=NAME` the fields
    of a method.
    """  # noqa: D301  (a backspace keeps the lines of a paragraph as they are)
    from kvbench.config.catalog import named_experiment

    words = words or []
    if "lm_eval" in named_experiment(words):
        if dry_run:
            raise UserError("an experiment of lm-eval has no --dry-run: leave it out")
        from kvbench.lmeval.command import run_lm_eval

        # As in every run, unless a word says more.
        named = any(word.startswith("data=") for word in words)
        say(run_lm_eval([*["data=sample"] * (not named), *words]))
        return
    if dry_run:
        from kvbench.api import forecast_words

        for result in forecast_words(words):
            plan = result.plan
            say(f"{plan.model.name} on {plan.suite_choice}, {result.value.text(plan.out)}")
        return
    from kvbench.api import run_words

    say_what_was_done(run_words([*["retry_failed=true"] * retry_failed, *words]))


def say_what_was_done(results: Sequence[JobResult]) -> None:
    """Print one line for each run folder; exit 1 where a result failed."""
    for folder in dict.fromkeys(result.plan.out for result in results):
        here = [result for result in results if result.plan.out == folder]
        for result in here:
            if isinstance(result.value, list):
                names = [str(path.relative_to(folder)) for path in result.value if path != folder]
                made = ", ".join(names) or result.plan.analysis
                typer.echo(f"{folder}: {made}; kvbench report {folder}")
        counted = [result.value for result in here if isinstance(result.value, Summary)]
        if counted:
            say(sum(counted[1:], start=counted[0]).text(folder))
    if any(isinstance(result.value, Summary) and result.value.failed for result in results):
        raise typer.Exit(1)
