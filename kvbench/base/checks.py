"""Checks of plain values, complaining in the user's terms."""

from __future__ import annotations

from kvbench.base.errors import UserError


def as_text(name: str, value: object, *, optional: bool = False) -> str | None:
    """Return a value as text; a whole number is the text that was typed.

    Raises:
        UserError: the value is neither, nor (if optional) null.
    """
    if isinstance(value, str) or (value is None and optional):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise UserError(f"{name}={value!r} is not text{' or null' * optional}: put it in quotes")


def check_whole_number(name: str, value: object, *, least: int = 1, optional: bool = False) -> None:
    """Raise UserError unless `value` is an int of at least `least` (or None, if optional)."""
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        ending = " or null" if optional else ""
        raise UserError(f"{name}={value!r} is not a whole number >= {least}{ending}")
