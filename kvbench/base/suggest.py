"""The nearest legal name to a mistyped one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Remedy for an unknown name: the nearest known one, then all of them where they are few.

    Returns:
        Text without a newline, such as `did you mean snapkv? known: fullkv, snapkv`.
    """
    names = sorted(known)
    if not names:
        return "there is none to choose from"
    folded = {n.lower(): n for n in names}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    everything = f"known: {', '.join(names)}"
    return f"did you mean {folded[near[0]]}? {everything}" if near else everything
