"""Prompts that fit what a model can rotate."""

from __future__ import annotations

from functools import cache

import hydra
import pytest

from kvbench.base.errors import UserError
from kvbench.config.planning import plan_from_config
from kvbench.model.loading import LoadedModel, ModelSpec, wrap
from kvbench.model.random import byte_tokenizer
from kvbench.plan.plan import Plan
from kvbench.run.prepare import prompt_of
from kvbench.tasks.task import Sample, Task
from support.cli import one_line
from support.families import rescaling_network


@cache
def rescaling() -> LoadedModel:
    """A model of 256 positions that changes its rotation beyond 64."""
    network = rescaling_network("longrope")
    return wrap(network, byte_tokenizer(256), ModelSpec("long", "random"), {})


def plan_of(*words: str) -> Plan:
    overrides = ["model=tiny-random", *words]
    return plan_from_config(hydra.compose("config", overrides), overrides)


def sample(characters: int) -> Sample:
    """A prompt of so many bytes, to be answered in four tokens."""
    task = Task("t", "QA", "{context}{input}", 4, lambda prediction, of: {"f1": 0.0})
    return Sample(task, "id", "x" * (characters - 1), "y", ("a",))


@pytest.mark.parametrize(
    ("characters", "tokens"),
    # The template takes 21 tokens. 7 characters are left where 64 - 4 - 20, less 32 spared, are
    # the tokens of the text with its beginning of sequence.
    [(39, 60), (40, 28), (43, 28), (44, 65), (120, 141)],
)
def test_a_prompt_that_would_cross_a_change_of_rotation_is_cut_below_it(
    composing: None, characters: int, tokens: int
) -> None:
    prompt = prompt_of(plan_of(), rescaling(), sample(characters))
    assert len(prompt) == tokens
    assert (prompt.tokens_cut > 0) is (tokens == 28)


def test_a_prompt_that_may_not_be_cut_is_refused(composing: None) -> None:
    with pytest.raises(UserError, match="crosses 64") as error:
        prompt_of(plan_of("protocol.truncation=none"), rescaling(), sample(40))
    one_line(error)
