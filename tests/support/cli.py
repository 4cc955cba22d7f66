"""The command line as a test calls it, and what it says of a user's mistake."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner, Result

from kvbench.base.errors import UserError
from kvbench.cli.main import app


def cli(*words: str) -> Result:
    """What a command ended with, whatever that is."""
    return CliRunner().invoke(app, list(words))


def done(*words: str) -> str:
    """What a command that succeeds prints."""
    result = cli(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def one_line(error: pytest.ExceptionInfo[UserError]) -> str:
    """The text of a user's mistake, which must be one line."""
    text = str(error.value)
    assert "\n" not in text
    return text
