"""What a shell offers for the word that is being typed."""

from __future__ import annotations

import typer

_KEYS = ("model", "task", "method", "protocol", "experiment", "data", "budget", "limit", "out")
_GROUPS = ("model", "task", "method", "protocol", "experiment")


def words_that_begin(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the words that begin as typed: `method=sna` gives `method=snapkv`.

    Args:
        ctx: holds the words before; bash makes three of `method=sna`, and `=` is one of them.
        incomplete: what is typed of the word.
    """
    from kvbench.config.catalog import choices

    args = ctx.params.get("words") or []
    name, equals, typed = incomplete.rpartition("=")
    before = f"{name}="
    if not name and (equals or args[-1:] == ["="]):
        names = [word for word in args if word != "="]
        name, before = (names[-1] if names else ""), ""
    if not name:
        return [f"{key}=" for key in _KEYS if key.startswith(incomplete)]
    if name not in _GROUPS:
        return []
    done, comma, last = typed.rpartition(",")
    found = (choice.name for choice in choices(name))
    return [f"{before}{done}{comma}{choice}" for choice in found if choice.startswith(last)]
