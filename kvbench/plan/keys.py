"""What the name of a result covers beside settings: the code that it ran through.

Equal keys, equal results. The road that every result takes is one fingerprint; a method has one of
its own, of its module, its bases' and what these import that the road does not. Scoring is not
covered: records can be scored again.
"""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path

from kvbench.base.code import (
    bare_code,
    code_digest,
    file_code,
    imported_modules,
    reached_modules,
    release_of,
)
from kvbench.base.hashing import fingerprint
from kvbench.compress.method import Method
from kvbench.tasks.task import Task

ROAD = (
    "kvbench.model",
    "kvbench.prefill",
    "kvbench.cache",
    "kvbench.compress",
    "kvbench.decode",
    "kvbench.tasks.prompt",
    "kvbench.tasks.task",
    "kvbench.plan.protocol",
    "kvbench.run.prepare",
    "kvbench.run.caches",
    "kvbench.run.sample",
)
"""Modules and packages whose code can change a result, as far as a run reaches them."""

_STARTS = ("kvbench.run.prepare", "kvbench.run.sample")
"""Where a sample sets out; both stand above this module and are only read."""

_OF_METHODS = (*ROAD, "kvbench.methods", "kvbench.classifier")
_LIBRARIES = ("torch", "transformers")


@lru_cache
def road_code() -> str:
    """Fingerprint of the code that every result runs through, and of the libraries' releases."""
    modules = reached_modules(_STARTS, ROAD)
    return fingerprint([code_digest(modules), [release_of(name) for name in _LIBRARIES]])


def method_code(method: Method) -> str:
    """Fingerprint of a method's own code, and of the methods it wraps."""
    wrapped = [method_code(v) for v in _fields(method).values() if isinstance(v, Method)]
    return fingerprint([_class_code(type(method)), *wrapped])


def method_parts(method: Method) -> list[object]:
    """A method as plain parts: its class, its code and its fields, wrapped methods alike."""
    cls = type(method)
    values = {
        name: method_parts(value) if isinstance(value, Method) else value
        for name, value in _fields(method).items()
    }
    return [f"{cls.__module__}.{cls.__qualname__}", _class_code(cls), values]


@lru_cache
def task_digest(task: Task) -> str:
    """Fingerprint of what a task says of its prompts and answers."""
    names = ("name", "template", "max_new_tokens", "chat_template", "stop_at_newline")
    return fingerprint([getattr(task, name) for name in names])


def _fields(method: Method) -> dict[str, object]:
    assert is_dataclass(method)
    return {field.name: getattr(method, field.name) for field in fields(method)}


@lru_cache
def _class_code(cls: type[Method]) -> str:
    """Fingerprint of the modules that define a class and its bases, and of what they import."""
    lineage = [c for c in cls.__mro__ if issubclass(c, Method) and c is not Method]
    road = set(reached_modules(_STARTS, ROAD))
    own: dict[str, None] = {}
    foreign: list[str] = []
    for base in lineage:
        if base.__module__.startswith("kvbench."):
            own |= dict.fromkeys(reached_modules((base.__module__,), _OF_METHODS))
            continue
        path = _file_of(base)
        foreign.append(_code_without_file(base) if path is None else file_code(path))
        starts = tuple(imported_modules(path, _OF_METHODS))
        own |= dict.fromkeys(reached_modules(starts, _OF_METHODS))
    return fingerprint([code_digest(tuple(sorted(own.keys() - road))), foreign])


def _file_of(cls: type) -> Path | None:
    try:
        found = inspect.getsourcefile(cls)
    except TypeError:  # defined in a session
        return None
    return Path(found) if found and Path(found).is_file() else None


def _code_without_file(cls: type) -> str:
    """What is known of a class that was typed in: its source, else its compiled functions."""
    try:
        return bare_code(inspect.cleandoc("\n" + inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        digest = hashlib.blake2b(digest_size=16)
        for name, member in sorted(vars(cls).items()):
            function = getattr(member, "fget", member)
            code = getattr(function, "__code__", None)
            if code is not None:
                digest.update(f"{name} {code.co_names} {code.co_varnames}".encode() + code.co_code)
                constants = [c for c in code.co_consts if not hasattr(c, "co_code")]
                digest.update(repr(constants).encode())
        return digest.hexdigest()
