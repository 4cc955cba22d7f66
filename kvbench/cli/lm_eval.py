"""`kvbench lm-eval`."""

from __future__ import annotations

import typer

from kvbench.cli.app import app
from kvbench.cli.output import say


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

    say(run_lm_eval(ctx.args))
