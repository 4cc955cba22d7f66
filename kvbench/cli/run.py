"""`kvbench run`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kvbench.cli.app import app
from kvbench.cli.output import say
from kvbench.records.summary import Summary

if TYPE_CHECKING:
    from kvbench.config.sweeper import JobResult


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run(
    ctx: typer.Context,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Compute again what failed before.")
    ] = False,
) -> None:
    """Evaluate methods on a model: words such as method=spindlekv budget=0.2,0.4 data=sample.

    Every word is a Hydra override of conf/config.yaml or of a config group (model, task, method,
    protocol, experiment); a comma sweeps. FullKV runs beside as the baseline (baseline=false
    leaves it out). A second run of the same words does only what is missing. An experiment is run
    as its paper did: by LongBench, lm-eval, a measurement of speed, ... Hydra's own flags
    pass through after the words: --cfg job prints the configuration, --config-dir DIR adds yours,
    --hydra-help says more. `kvbench list` and `kvbench show method=NAME` say what there is.
    """
    from kvbench.config.catalog import named_experiment

    if "lm_eval" in named_experiment(ctx.args):
        from kvbench.lmeval.command import run_lm_eval

        # As in every run, unless a word says more.
        named = any(word.startswith("data=") for word in ctx.args)
        say(run_lm_eval([*["data=sample"] * (not named), *ctx.args]))
        return
    from kvbench.api import run_words

    say_what_was_done(run_words([*["retry_failed=true"] * retry_failed, *ctx.args]))


def say_what_was_done(results: Sequence[JobResult]) -> None:
    """Print one line for each run folder; exit 1 where a result failed."""
    for folder in dict.fromkeys(result.plan.out for result in results):
        here = [result for result in results if result.plan.out == folder]
        for result in here:
            if isinstance(result.value, list):
                names = [path.name for path in result.value if path != folder]
                made = ", ".join(names) or result.plan.analysis
                typer.echo(f"{folder}: {made}; kvbench report {folder}")
        counted = [result.value for result in here if isinstance(result.value, Summary)]
        if counted:
            say(sum(counted[1:], start=counted[0]).text(folder))
    if any(isinstance(result.value, Summary) and result.value.failed for result in results):
        raise typer.Exit(1)
