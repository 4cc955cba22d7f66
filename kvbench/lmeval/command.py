"""`kvbench lm-eval`: kvbench's words before `--`, lm-eval's own flags behind it.

kvbench's words make the plan, as in `kvbench run`; lm-eval builds the prompts and computes the
metrics. Each variant is one evaluation of lm-eval's; all share the prefills of the first.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from kvbench.base.errors import UserError
from kvbench.config.catalog import named_experiment
from kvbench.config.consent import consents
from kvbench.config.sweeper import plan_of_job, run_words
from kvbench.config.words import quoted
from kvbench.lmeval.requests import is_task_file

if TYPE_CHECKING:
    from kvbench.lmeval.evaluation import Evaluated

_OWN_WORDS = {"tasks": "lm_eval.tasks", "data": "lm_eval.data"}

_REFUSED_WORDS = {
    "task": "name lm-eval's tasks with tasks=NAME,NAME",
    "hub_repo": "lm-eval's tasks name their own data",
    "data_revision": "lm-eval's tasks name their own data",
    "shards": "a job runs all documents of its model",
    "shard": "a job runs all documents of its model",
    "decode": "each prompt decodes as wide as it has different caches",
    "protocol": "lm-eval makes the prompts; protocol.first_token is the one word that counts here",
}
_PROTOCOL_WORD = "protocol.first_token"

_REFUSED_FLAGS = {
    "config": "give the flags themselves",
    "model": "kvbench's word model=NAME says it",
    "model_args": "kvbench's words model.FIELD=VALUE say it",
    "device": "kvbench's word model.device=NAME says it",
    "tasks": "kvbench's word tasks=NAME,NAME says it",
    "use_cache": "the run folder holds every answer: the same command goes on",
    "wandb_args": "kvbench report reads the records",
    "wandb_config_args": "kvbench report reads the records",
    "trackio_args": "kvbench report reads the records",
    "hf_hub_log_args": "give --output_path, and upload that",
}


def run_lm_eval(words: Sequence[str]) -> str:
    """Evaluate the variants that the words name on lm-eval's tasks; returns lm-eval's tables.

    Args:
        words: kvbench's words, and lm-eval's flags after `--`.

    Raises:
        UserError: anything the user got wrong, lm-eval's own complaints included.
    """
    if find_spec("lm_eval") is None:
        raise UserError("lm-eval is not installed: pip install 'kvbench[lmeval]'")
    border = list(words).index("--") if "--" in words else len(words)
    flags = list(words[border + 1 :])
    if any(flag in ("-h", "--help") for flag in flags):
        from kvbench.lmeval.private import parsed_flags

        parsed_flags(["--help"])
    settings = _settings(flags)

    results = run_words(own_words(words[:border]), partial(_job, settings=settings))
    return "".join(
        result.value.tables + result.value.summary.text(result.plan.out) for result in results
    )


def _job(config: DictConfig, settings: Any) -> Evaluated:
    from kvbench.lmeval.evaluation import evaluate

    plan = plan_of_job(config)
    _check_tasks(plan.lm_eval.tasks, consents(list(HydraConfig.get().overrides.task)))
    return evaluate(plan, settings)


def own_words(words: Sequence[str]) -> list[str]:
    """Spell the words of this command as Hydra's overrides.

    Raises:
        UserError: a word is `kvbench run`'s and means nothing here.
    """
    spelled = ["shards=1"]  # whatever the launcher: lm-eval's metrics need all documents
    for word in words:
        name, equals, value = word.partition("=")
        refused = _REFUSED_WORDS.get(name.lstrip("+~").partition(".")[0])
        if refused and name != _PROTOCOL_WORD:
            raise UserError(f"{word} does not apply to kvbench lm-eval: {refused}")
        if name in _OWN_WORDS and equals:
            word = f"{_OWN_WORDS[name]}={quoted(value)}"
        spelled.append(word)
    if "out" not in named_experiment(words) and not any(w.startswith("out=") for w in spelled):
        spelled.insert(0, "out='results/runs/${model.name}-lm-eval'")  # before Hydra's flags
    return spelled


def _check_tasks(tasks: str | None, code_allowed: bool) -> None:
    """Refuse a lack of tasks, and task files where no code may run.

    A file's `!function` imports a module beside it, and its templates can reach any object.
    """
    if not tasks:
        raise UserError("no task is named: give tasks=gsm8k, or several with commas")
    for name in filter(is_task_file, tasks.split(",")):
        if not code_allowed:
            raise UserError(
                f"tasks={name} is a file, which can run code outside kvbench: add"
                " allow_targets=true to the command line to run it"
            )


def _settings(flags: Sequence[str]) -> Any:
    """lm-eval's settings of its flags, checked by lm-eval.

    Raises:
        UserError: a flag is unknown, has a bad value, or does not apply to kvbench.
    """
    quiet = logging.getLogger("lm_eval")
    quiet.setLevel(os.environ.get("LMEVAL_LOG_LEVEL", "ERROR").upper())
    from lm_eval.config.evaluate_config import EvaluatorConfig

    from kvbench.lmeval.private import parsed_flags

    given = parsed_flags(flags)
    for name, reason in _REFUSED_FLAGS.items():
        if getattr(given, name, None):
            raise UserError(f"--{name} does not apply to kvbench lm-eval: {reason}")
    try:
        return EvaluatorConfig.from_cli(given)
    except ValueError as error:
        raise UserError(str(error)) from error
