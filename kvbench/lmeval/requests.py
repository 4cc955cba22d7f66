"""What lm-eval asks for, in a form that names its answer, and the settings kvbench can follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lm_eval.models.utils import normalize_gen_kwargs

from kvbench.base.errors import UserError
from kvbench.base.hashing import fingerprint
from kvbench.plan.plan import Plan
from kvbench.plan.variant import Variant

ROLLING_REFUSED = (
    "rolling log-likelihood scores a text from its first token on: there is no context to compress"
)

_GREEDY = {"do_sample": False, "temperature": 0.0, "num_beams": 1}
_WITHOUT_EFFECT = ("top_p", "top_k", "use_cache")  # on greedy decoding


@dataclass(frozen=True)
class Request:
    """What lm-eval asks."""

    context: str
    continuation: str | None = None
    """Text to score; None: generate."""
    settings: Mapping[str, Any] | None = None
    """lm-eval's generation settings of a generation."""

    def key(self, plan: Plan, variant: Variant) -> str:
        """Fingerprint of everything that can change a variant's answer."""
        return fingerprint([plan.digest, variant.digest, asdict(self)])


def generation_request(arguments: Sequence[Any]) -> Request:
    """The request of a generation's arguments (context, settings) in lm-eval."""
    context, settings = arguments[:2]
    return Request(context, None, dict(settings))


def greedy_settings(asked: Mapping[str, Any], task: str) -> dict[str, Any]:
    """Return a task's generation settings in lm-eval's normal form.

    Args:
        asked: as the task or --gen_kwargs states them.
        task: its name, for complaints.

    Returns:
        `until`, `max_gen_toks` and what else was asked for.

    Raises:
        UserError: they ask for something else than greedy decoding.
    """
    settings = dict(normalize_gen_kwargs(dict(asked)))
    for name, value in settings.items():
        if name in _GREEDY and value != _GREEDY[name]:
            raise UserError(
                f"{task} asks for {name}={value}, and kvbench decodes greedily: add --gen_kwargs"
                f" {name}={_GREEDY[name]} after --"
            )
        if name not in (*_GREEDY, *_WITHOUT_EFFECT, "until", "max_gen_toks", "min_new_tokens"):
            raise UserError(
                f"{task} asks for {name}={value}, a generation setting that kvbench does not have"
            )
    return settings


class StopText:
    """Whether the newest of some generated ids complete a stop text."""

    def __init__(self, texts: Sequence[str], tokenizer: Any) -> None:
        """Look for `texts` in what the tokenizer makes of the ids."""
        self._texts = [text for text in texts if text]
        self._tokenizer = tokenizer
        # A token writes at least one byte, or is special; one more, as a first token may lose its
        # leading space.
        self._window = 1 + max((len(text.encode()) for text in self._texts), default=0)

    def __call__(self, ids: Sequence[int]) -> bool:
        """Look at the newest of all ids generated so far."""
        newest = self._tokenizer.decode(ids[-self._window :])
        return any(text in newest for text in self._texts)


def is_task_file(name: str) -> bool:
    """Whether what is named as a task is a YAML file."""
    return name.endswith((".yaml", ".yml"))
