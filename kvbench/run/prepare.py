"""From a plan to samples, prompts and the end of their answers."""

from __future__ import annotations

from functools import partial

from kvbench.base.errors import UserError
from kvbench.data.files import Source
from kvbench.decode.greedy import Stop
from kvbench.model.loading import LoadedModel, context_of, load_tokenizer
from kvbench.plan.plan import Plan
from kvbench.plan.protocol import Protocol
from kvbench.tasks.needle import Needle
from kvbench.tasks.prompt import Prompt, PromptRules, input_limit, render
from kvbench.tasks.ruler import Ruler
from kvbench.tasks.task import Sample, Task

_SPARE = 32
"""Tokens that a cut prompt may gain where it is tokenized anew."""


def read_samples(plan: Plan) -> tuple[Source, dict[Task, tuple[Sample, ...]]]:
    """Open a plan's data and read the samples of its tasks.

    Raises:
        UserError: the data cannot be used.
    """
    _refuse_prompts_beyond_the_context(plan)
    source = plan.suite.source(plan.data, hub_repo=plan.hub_repo, revision=plan.data_revision)
    tokenizer = partial(load_tokenizer, plan.model)
    found = {t: tuple(plan.suite.samples(t, source, plan.limit, tokenizer)) for t in plan.tasks}
    return source, found


def _refuse_prompts_beyond_the_context(plan: Plan) -> None:
    """Say before any text is made that a suite sizes its prompts beyond the model."""
    if not isinstance(plan.suite, (Needle, Ruler)):
        return
    least, context = plan.suite.longest_prompt, context_of(plan.model)
    if least > context:
        setting = plan.tasks[0].length_setting
        raise UserError(
            f"{setting}={plan.suite.longest} makes prompts of more than {least} tokens, and"
            f" {plan.model.name} has positions for {context}: give a smaller {setting}"
        )


def prompt_of(plan: Plan, model: LoadedModel, sample: Sample) -> Prompt:
    """The sample's prompt under the plan's protocol, known to fit with what is generated.

    Where truncation is allowed, a prompt whose answer would cross the length at which a longrope
    model changes its rotation is cut to end below it.
    """
    protocol, task = plan.protocol, sample.task
    rules = PromptRules(protocol.truncation, protocol.chat_template)
    made = partial(
        render, sample, model.tokenizer, rules, context_limit=model.geometry.context
    )
    prompt = made(max_input_tokens=protocol.max_input_tokens)
    cuts = protocol.truncation == "middle" and not task.length_setting
    border = model.geometry.rescaled_beyond
    if cuts and border is not None and len(prompt) <= border < len(prompt) + task.max_new_tokens:
        limit = input_limit(border, task, model.tokenizer, rules)
        prompt = made(max_input_tokens=max(2, limit - _SPARE))
    model.check_length(len(prompt), task.max_new_tokens)
    return prompt


def split_prompt(prompt: Prompt, protocol: Protocol) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split the ids into what is prefilled and compressed, and what is fed after compression.

    With `query_aware=false` the question is fed afterwards; with `first_token=compressed` at
    least the last token is, so that nothing generated has seen an evicted row. At least one token
    is prefilled.
    """
    border = len(prompt.ids) if protocol.query_aware else prompt.context_end
    if protocol.first_token == "compressed":
        border = min(border, len(prompt.ids) - 1)
    border = max(1, border)
    return prompt.ids[:border], prompt.ids[border:]


def stop_rule(protocol: Protocol, task: Task, model: LoadedModel) -> Stop:
    """When a generation of this task ends under this protocol."""
    ids = set(model.eos_ids)
    if protocol.stop == "tokenizer_eos":
        ids = {model.tokenizer.eos_token_id}
    newline = frozenset(model.tokenizer.encode("\n", add_special_tokens=False)[-1:])
    if protocol.stops_at_newline(task) or task.one_line_answers:
        ids |= newline
    skipped = newline if task.one_line_answers else frozenset[int]()
    return Stop(frozenset(ids), task.max_new_tokens, protocol.min_tokens(task), leading_ids=skipped)
