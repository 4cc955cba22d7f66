"""The nearest legal name to a mistyped one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], cutoff: float = 0.0) -> str | None:
    """Return the known name that is most like another, letters' case aside; None: none is."""
    folded = {n.lower(): n for n in sorted(known)}
    found = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=cutoff)
    return folded[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Remedy for an unknown name: the nearest known one, then all of them where they are few.

    Returns:
        Text without a newline, such as `did you mean snapkv? known: fullkv, snapkv`.
    """
    names = sorted(known)
    if not names:
        return "there is none to choose from"
    near = nearest(name, names, cutoff=0.5)
    everything = f"known: {', '.join(names)}"
    return f"did you mean {near}? {everything}" if near else everything
