"""Whether lines of a run folder hold what readers take for granted; the folder may be anybody's."""

from __future__ import annotations

import sys
import types
from typing import Any, get_args, get_origin


def fits(value: object, hint: Any) -> bool:
    """Whether a JSON value has a field's type; a whole number is a float too."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is types.UnionType:
        return any(fits(value, option) for option in arguments)
    if origin is dict:
        return isinstance(value, dict) and all(fits(v, arguments[1]) for v in value.values())
    if origin is list:
        return isinstance(value, list) and all(fits(v, arguments[0]) for v in value)
    if hint is int:  # what a float can hold
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    if hint is float:  # what a mean can be taken of
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and abs(value) < sys.float_info.max / 2**32  # type: ignore[arg-type]
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


