"""What kvbench uses of lm-evaluation-harness that it does not document, in one place."""

from __future__ import annotations

import argparse
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from typing import Any

from lm_eval import evaluator
from lm_eval._cli.run import Run
from lm_eval.models.huggingface import HFLM

from kvbench.base.errors import UserError

SEEN = ("0.4.13", "0.4.13")
"""The first and the last release of lm-eval in which these names were seen."""


def parsed_flags(flags: Sequence[str]) -> Any:
    """Return the namespace that lm-eval's own parser makes of flags; --help prints and exits.

    Raises:
        UserError: a flag is unknown or has a bad value.
    """
    subparsers = argparse.ArgumentParser(prog="kvbench lm-eval ... --").add_subparsers()
    Run.create(subparsers)
    said = StringIO()
    try:
        with redirect_stderr(said):
            return subparsers.choices["run"].parse_args(list(flags))
    except SystemExit as error:
        if not error.code:
            raise
        last = said.getvalue().strip().splitlines()[-1]
        raise UserError(f"{last.partition('error: ')[2]} (after --, lm-eval's flags)") from error


class TokenScorer(HFLM):  # type: ignore[misc]
    """lm-eval's own model up to where it has tokenized what it wants scored."""

    @abstractmethod
    def likelihoods(
        self,
        requests: Sequence[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
    ) -> list[tuple[float, bool]]:
        """Score continuations.

        Args:
            requests: texts (context, continuation), and the token ids of both.
            disable_tqdm: whether no progress is shown.

        Returns:
            By request: its log-likelihood, and whether greedy decoding would have written it.
        """

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> list[tuple[float, bool]]:
        return self.likelihoods(requests, disable_tqdm)


@contextmanager
def facts_left_out() -> Iterator[None]:
    """Keep lm-eval from running pip and git for facts that only a tracker writes."""
    before = evaluator.add_env_info, evaluator.get_git_commit_hash
    evaluator.add_env_info, evaluator.get_git_commit_hash = (
        lambda storage: None,
        lambda: None,
    )
    try:
        yield
    finally:
        evaluator.add_env_info, evaluator.get_git_commit_hash = before
