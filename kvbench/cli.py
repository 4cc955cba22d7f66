"""The command line: thin commands; whatever is heavy is imported inside them."""

from __future__ import annotations

import enum
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import kvbench
from kvbench.errors import UserError
from kvbench.output import deliver, reading_records, say


class _OneLineErrors(TyperGroup):
    """Prints a user's mistake as one line on stderr and exits 2; Ctrl-C exits 130."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except UserError as error:
            say(f"kvbench: {' '.join(str(error).split())}\n", err=True)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as stopped:
            said = "kvbench: stopped; what is recorded stays, and the same command goes on"
            typer.echo(said, err=True)
            raise typer.Exit(130) from stopped


app = typer.Typer(
    cls=_OneLineErrors,
    help="Evaluate KV cache compression methods on real models.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Kind(str, enum.Enum):
    """What `kvbench list` lists."""

    methods = "methods"
    tasks = "tasks"
    models = "models"
    experiments = "experiments"
    published = "published"


class Format(str, enum.Enum):
    """Form of a table."""

    terminal = "terminal"
    markdown = "markdown"
    csv = "csv"
    latex = "latex"
    html = "html"


class Measured(str, enum.Enum):
    """What `kvbench bench` measures."""

    speed = "speed"


class CodeSimilarity(str, enum.Enum):
    """Edit similarity of the code tasks."""

    difflib = "difflib"
    levenshtein = "levenshtein"


def main() -> None:
    """Entry point of the command `kvbench`."""
    app(prog_name="kvbench")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kvbench {kvbench.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print it."),
    ] = False,
) -> None:
    pass


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
    from kvbench.catalog import named_experiment

    if "lm_eval" in named_experiment(ctx.args):
        from kvbench.lmeval.command import run_lm_eval

        return run_lm_eval(["data=sample", *ctx.args])  # as in every run, unless a word says more
    from kvbench.sweep import run_words

    run_words([*["retry_failed=true"] * retry_failed, *ctx.args])


@app.command(
    "lm-eval",
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,  # keeps `--` among the words
    },
)
def lm_eval(ctx: typer.Context) -> None:
    """Evaluate methods on lm-evaluation-harness: words such as method=snapkv tasks=gsm8k.

    Words before `--` are kvbench's, as of `kvbench run` (model, method, budget, limit, out, ...),
    with tasks=NAME,NAME for lm-eval's tasks and data=FOLDER for local files
    <task>/<split>.jsonl instead of the hub's. Everything after `--` goes to lm-eval:
    -- --num_fewshot 0 --apply_chat_template. Needs the extra lmeval.
    """
    from kvbench.lmeval.command import run_lm_eval

    run_lm_eval(ctx.args)


@app.command()
def report(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FOLDER | experiment=NAME]",
            help="Run folder, default: the newest in results/runs; or an experiment's table.",
        ),
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="Form of the table.")] = Format.terminal,
    output: Annotated[
        Path | None, typer.Option(help="File to write instead of the terminal.")
    ] = None,
    tasks: Annotated[bool, typer.Option("--tasks", help="One column per task, no groups.")] = False,
    ratios: Annotated[
        bool, typer.Option("--ratios", help="Tokens kept and both readings of Formula 15 too.")
    ] = False,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="The 95% interval of each score.")
    ] = False,
    differences: Annotated[
        bool, typer.Option("--differences", help="Paired differences to FullKV, with p.")
    ] = False,
    reference: Annotated[
        str | None,
        typer.Option(help="Compare with this row, such as snapkv@0.2; implies --differences."),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=0, help="Samples of each task that the HTML page shows.")
    ] = 25,
    published: Annotated[
        str | None,
        typer.Option(help="A paper's table alone, such as windowkv/table1; no run is read."),
    ] = None,
) -> None:
    """Print the table of a run: methods x budgets, LongBench groups, measured ratios."""
    from kvbench.report import render
    from kvbench.report.experiment import experiment_folder, experiment_report
    from kvbench.report.look import Look
    from kvbench.report.tables import newest_run

    look = Look(
        form=form.value,
        per_task=tasks,
        ratios=ratios,
        intervals=intervals,
        differences=differences or reference is not None,
        reference=reference,
        samples=samples,
        coloured=output is None and sys.stdout.isatty() and "NO_COLOR" not in os.environ,
    )
    folder = None
    if published is not None:
        text = render.published_report(published, look)
    elif words and any(word.startswith("experiment=") for word in words):
        folder = experiment_folder(words)
        text = experiment_report(words, look)
    elif words and len(words) > 1:
        raise UserError(f"{len(words)} folders are given: one report reads one")
    else:
        folder = Path(words[0]) if words else newest_run(Path("results", "runs"))
        with reading_records():
            text = render.report(folder, look)
    if folder is not None:
        with reading_records():
            drawn = render.figure_files(folder)
        if drawn:
            said = f"kvbench: {len(drawn)} figure files (PNG, PDF, SVG) in {folder / 'figures'}"
            typer.echo(said, err=True)
    deliver(text, output)


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(metavar="RUN_A", help="Run folder.")],
    after: Annotated[Path, typer.Argument(metavar="RUN_B", help="Run folder.")],
    form: Annotated[Format, typer.Option("--format", help="terminal or markdown.")] = (
        Format.terminal
    ),
    changed: Annotated[int, typer.Option(min=0, help="Samples shown with both predictions.")] = 10,
) -> None:
    """Compare two runs sample by sample: paired scores, and the samples that changed most."""
    from kvbench.report.compare_runs import changed_samples, compare_runs, comparison_sheet
    from kvbench.report.look import Look
    from kvbench.report.render import drawn

    if form in (Format.csv, Format.html):
        raise UserError(f"--format {form.value} has no comparison: give terminal or markdown")
    with reading_records():
        found = compare_runs(before, after)
        sheet = drawn([comparison_sheet(found, before, after)], Look(form=form.value))
    say(sheet + "\n" + changed_samples(found, changed))


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
    from kvbench import gate
    from kvbench.report import gate_report
    from kvbench.report.regression import Tolerance

    with gate.could_not_run():
        run, verdict = gate.check(words or [], baseline, Tolerance(changed, margin), update)
    if verdict is None:
        typer.echo(f"{run} is the baseline {baseline} now")
        return
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    say(gate_report.verdict_text(verdict, baseline, run, coloured))
    if junit is not None:
        deliver(gate_report.junit(verdict), junit)
    if summary is not None:
        deliver(gate_report.verdict_summary(verdict, baseline, run), summary, append=True)
    if update:
        typer.echo(f"{run} is the baseline {baseline} now")
    elif verdict.failed:
        raise typer.Exit(1)


@app.command()
def status(
    path: Annotated[
        Path | None, typer.Argument(help="Run folder; default: the newest in results/runs.")
    ] = None,
) -> None:
    """Show what a run folder holds: results done, missing and failed, by variant and task."""
    from kvbench.report.status import status_text
    from kvbench.report.tables import newest_run

    with reading_records():
        text = status_text(path or newest_run(Path("results", "runs")))
    say(text)


@app.command()
def score(
    path: Annotated[
        Path, typer.Argument(help="Run folder, or prediction file or folder in LongBench's format.")
    ],
    by_length: Annotated[
        bool, typer.Option("--by-length", help="LongBench-E's buckets of prediction files.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print task -> score as JSON.")] = False,
    code_similarity: Annotated[
        CodeSimilarity | None,
        typer.Option(help="Default: as the run was scored; difflib for prediction files."),
    ] = None,
) -> None:
    """Score stored predictions again, without a model."""
    from kvbench.report.rescore import scores_of

    backend = None if code_similarity is None else code_similarity.value
    with reading_records():
        scores = scores_of(path, backend, by_length)
    if as_json:
        say(json.dumps(scores.values, ensure_ascii=False, indent=1) + "\n")
    else:
        say(scores.text())


@app.command()
def bench(
    what: Annotated[Measured, typer.Argument(help="What to measure.")],
    words: Annotated[
        list[str] | None, typer.Argument(help="Words of a run: model=..., method=..., budget=...")
    ] = None,
    form: Annotated[Format, typer.Option("--format", help="Form of the table.")] = Format.terminal,
    output: Annotated[
        Path | None, typer.Option(help="File to write instead of the terminal.")
    ] = None,
) -> None:
    """Measure prefill, compression and decoding of FullKV and any variants, and their memory.

    speed.context=4096 speed.generate=64 speed.repeats=3 say what is measured, and
    model.random_weights=true builds the model's shape with random weights: nothing is downloaded.
    """
    if form in (Format.csv, Format.html):
        raise UserError(f"--format {form.value} is no form of bench: markdown, latex or terminal")
    from kvbench.bench import speed_of_words
    from kvbench.report.look import Look
    from kvbench.report.render import drawn

    deliver(drawn(speed_of_words(words or []), Look(form.value)), output)


@app.command("train-classifier")
def train_classifier(
    out: Annotated[Path, typer.Argument(help="Folder to write, for method.classifier=FOLDER.")],
    data: Annotated[
        str,
        typer.Option(help="sample, hub, folder or zip; or a .jsonl file with text and label."),
    ] = "sample",
    tasks: Annotated[
        str | None, typer.Option(help="LongBench tasks, with commas. Default: the sixteen.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="First N records of each task.")] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            help="Folder or hub id, such as bert-base-cased. Default: TF-IDF, no encoder."
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Over the prompts, with an encoder.")] = 10,
    batch_size: Annotated[int, typer.Option(help="Prompts, with an encoder.")] = 16,
    learning_rate: Annotated[float, typer.Option(help="Of AdamW, with an encoder.")] = 1e-6,
    seed: Annotated[int, typer.Option(help="Of the held-out tenth and the training.")] = 0,
) -> None:
    """Train the task classifier that WindowKV reads prompts with, and test it.

    LongBench tasks are labelled localisation (the question answering sets) or aggregation. One
    prompt in ten of each label is held out.
    """
    from kvbench.tasks.longbench import LONGBENCH_16
    from kvbench.train_classifier import Training, labelled_prompts, train

    training = Training(encoder, epochs, batch_size, learning_rate, seed=seed)
    names = LONGBENCH_16 if tasks is None else tasks.split(",")
    examples = labelled_prompts(data, names, limit)
    found = train(out, examples, training)
    typer.echo(
        f"accuracy {found.accuracy:.2%}, recall {found.recall:.2%}, F1 {found.f1:.2%} on"
        f" {found.prompts} held-out prompts of {len(examples)}; localisation counts as positive"
    )
    typer.echo(f"use it with method=windowkv method.classifier={out}")


@app.command("list")
def list_choices(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
) -> None:
    """List what can be run: methods, tasks, models, experiments; or tables of published numbers."""
    from kvbench import catalog
    from kvbench.report.published import published_tables

    if kind is Kind.published:
        found = {table.name: table.about for table in published_tables().values()}
    else:
        found = {c.name: c.about for c in catalog.choices(kind.value.removesuffix("s"))}
    if not found:
        typer.echo(f"no {kind.value} in kvbench.conf")
        return
    width = max(map(len, found))
    for name, about in found.items():
        typer.echo(f"{name:<{width}}  {about}".rstrip())


@app.command()
def show(
    words: Annotated[
        list[str], typer.Argument(help="A choice, such as method=spindlekv, and overrides of it.")
    ],
) -> None:
    """Show the resolved configuration of a choice, each field with where its default comes from."""
    from kvbench.report.choice import shown

    typer.echo(shown(words), nl=False)
