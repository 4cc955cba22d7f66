"""Fingerprints of plain values."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping


def fingerprint(parts: object) -> str:
    """Hash JSON-able parts: blake2b of sorted-key JSON, 32 hex digits; 1 and 1.0 are the same.

    Raises:
        TypeError: a part has no unique JSON form (NaN, a set, an object).
    """
    text = json.dumps(_plain(parts), sort_keys=True, allow_nan=False, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _plain(value: object) -> object:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{value} has no JSON form")
        return int(value) if value.is_integer() else value
    if isinstance(value, Mapping):
        if not all(isinstance(k, str) for k in value):
            raise TypeError(f"keys of {value!r} are not all text")
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    raise TypeError(f"{value!r} has no unique JSON form")
