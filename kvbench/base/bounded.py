"""Calls into programs of others, which may never end."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")
_GRACE = 5.0
"""Seconds that a call is given to notice that it was stopped."""


class _Stopped(BaseException):
    """No `except Exception` of the call's swallows it."""


def bounded(call: Callable[[], _T], seconds: float) -> _T:
    """Return what a call returns, or raise what it raises; stop it where it does not end in time.

    It runs on a thread of its own and is stopped between two instructions of Python's: a single one
    that never ends, such as a power of huge numbers, is not.

    Raises:
        TimeoutError: it was stopped.
    """
    found: dict[str, Any] = {}

    def run() -> None:
        try:
            found["value"] = call()
        except BaseException as error:
            found["error"] = error

    thread = threading.Thread(target=run, daemon=True, name="bounded call")
    thread.start()
    try:
        thread.join(seconds)
    finally:  # whatever interrupted the wait, Ctrl-C among it
        if thread.is_alive():
            identity = ctypes.c_ulong(thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(_Stopped))
            thread.join(_GRACE)
    if isinstance(found.get("error"), _Stopped) or not found:
        raise TimeoutError(f"not done after {seconds:g} s")
    if "error" in found:
        raise found["error"]
    value: _T = found["value"]
    return value
