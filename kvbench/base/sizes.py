"""Sizes in bytes, as users write and read them."""

from __future__ import annotations

import re

from kvbench.base.errors import UserError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)


def parsed_bytes(name: str, value: object) -> int | None:
    """Read a size as a user writes it: 8GiB, 500M, 1000000, or null; units are powers of 1024.

    Raises:
        UserError: it is none of these, or not positive.
    """
    if value is None:
        return None
    found = None if isinstance(value, bool) else _SIZE.fullmatch(str(value))
    size = 0 if found is None else int(float(found[1]) * _UNITS[found[2].upper()])
    if size < 1:
        raise UserError(f"{name}={value} is not a size: give bytes such as 8GiB or 500MiB, or null")
    return size


def shown_bytes(size: float) -> str:
    """A size for people: 1.5 GiB, 37.2 MiB."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
