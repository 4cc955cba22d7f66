"""The command line: thin commands; whatever is heavy is imported inside them."""

from __future__ import annotations

# Each adds its command, in the order of the help.
# isort: off
from kvbench.cli import run  # noqa: F401
from kvbench.cli import lm_eval  # noqa: F401
from kvbench.cli import report  # noqa: F401
from kvbench.cli import compare  # noqa: F401
from kvbench.cli import check  # noqa: F401
from kvbench.cli import status  # noqa: F401
from kvbench.cli import score  # noqa: F401
from kvbench.cli import bench  # noqa: F401
from kvbench.cli import train_classifier  # noqa: F401
from kvbench.cli import list  # noqa: F401
from kvbench.cli import show  # noqa: F401

# isort: on
from kvbench.cli.app import app


def main() -> None:
    """Entry point of the command `kvbench`."""
    app(prog_name="kvbench")
