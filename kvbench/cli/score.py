"""`kvbench score`."""

from __future__ import annotations

import enum
import json
from pathlib import Path
from typing import Annotated

import typer

from kvbench.cli.app import app
from kvbench.cli.output import reading_records, say


class CodeSimilarity(str, enum.Enum):
    """Edit similarity of the code tasks."""

    difflib = "difflib"
    levenshtein = "levenshtein"


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
    from kvbench.records.rescore import scores_of

    backend = None if code_similarity is None else code_similarity.value
    with reading_records():
        scores = scores_of(path, backend, by_length)
    if as_json:
        say(json.dumps(scores.values, ensure_ascii=False, indent=1) + "\n")
    else:
        say(scores.text())
