"""`kvbench train-classifier`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvbench.cli.app import app


@app.command("train-classifier")
def train_classifier(
    out: Annotated[Path, typer.Argument(help="Folder to write, for method.classifier=FOLDER.")],
    data: Annotated[
        str,
        typer.Option(help="sample, hub, folder or zip; or a .jsonl file: text, label, task."),
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
    splits: Annotated[int, typer.Option(help="Held-out tenths to test on, by seed.")] = 10,
    leave_out: Annotated[
        bool, typer.Option(help="Test on each task by a classifier trained on the others.")
    ] = True,
) -> None:
    """Train the task classifier that WindowKV reads prompts with, and test it.

    LongBench tasks are labeled localization (the question answering sets) or aggregation. One
    prompt in ten of each label is held out, in ten splits; and each task is left out in turn.
    """
    from kvbench.classifier.training import Training, labeled_prompts, train
    from kvbench.tasks.longbench import LONGBENCH_16

    training = Training(
        encoder, epochs, batch_size, learning_rate, seed=seed, splits=splits, leave_out=leave_out
    )
    names = LONGBENCH_16 if tasks is None else tasks.split(",")
    examples = labeled_prompts(data, names, limit)
    tested = train(out, examples, training)
    found = tested.held_out
    typer.echo(
        f"accuracy {found.accuracy:.2%}, recall {found.recall:.2%}, F1 {found.f1:.2%} on"
        f" {found.prompts} held-out prompts of {len(examples)}; localization counts as positive"
    )
    for line in tested.lines:
        typer.echo(line)
    typer.echo(f"use it with method=windowkv method.classifier={out}")
