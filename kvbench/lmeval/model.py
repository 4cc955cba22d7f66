"""The model that lm-eval calls: its Hugging Face model's text handling, kvbench's cache.

Tokenizing, chat templates, truncation from the left, stop texts and defaults are lm-eval's own;
how a prompt is run is `kvbench.lmeval.answers`.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from lm_eval.api.registry import register_model
from lm_eval.models.utils import (
    handle_stop_sequences,
    postprocess_generated_text,
)
from lm_eval.utils import simple_parse_args_string
from tqdm import tqdm

from kvbench.base.errors import UserError
from kvbench.config.sweeper import plans_of_words
from kvbench.decode.greedy import Stop
from kvbench.lmeval.answers import Answer, generated, scored
from kvbench.lmeval.private import TokenScorer
from kvbench.lmeval.requests import (
    ROLLING_REFUSED,
    Request,
    StopText,
    generation_request,
    greedy_settings,
)
from kvbench.model.loading import load
from kvbench.plan.plan import Plan
from kvbench.plan.variant import Variant
from kvbench.prefill.capture import capture
from kvbench.prefill.disk import PrefillCache
from kvbench.run.memory import Bytes, bytes_to_take
from kvbench.run.sample import Work
from kvbench.tasks.task import Sample, Task


@register_model("kvbench")
class KVBench(TokenScorer):
    """A model whose cache is compressed after each context is prefilled.

    It computes a request for all variants of its plan at once and answers with those of `variant`.
    """

    def __init__(
        self,
        plan: Plan,
        known: Mapping[str, Answer] | None = None,
        keep: Callable[[str, Answer], None] = lambda key, answer: None,
    ) -> None:
        """Load the plan's model.

        Args:
            plan: model, variants and `first_token`.
            known: answers computed before, by `Request.key`.
            keep: told every new answer.

        Raises:
            UserError: the model cannot be loaded.
        """
        self.plan = plan
        self.loaded = load(plan.model)
        logger = logging.getLogger("lm_eval.models.huggingface")
        level = logger.level
        logger.setLevel(logging.ERROR)  # it warns of a model that is in memory already
        super().__init__(
            pretrained=self.loaded.network,
            tokenizer=copy.deepcopy(self.loaded.tokenizer),  # it may be given a padding token
            max_length=self.loaded.geometry.context,
            batch_size=1,
        )
        logger.setLevel(level)
        self.variant = plan.variants[-1]
        self.answers = dict(known or {})
        self._keep = keep
        cache = plan.prefill_cache
        self._take = capture if cache is None else PrefillCache(cache).capture

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: Mapping[str, Any], additional_config: Mapping[str, Any] | None = None
    ) -> KVBench:
        """Make one of `--model_args`: kvbench's words, such as method=snapkv,budget=0.2."""
        device = (additional_config or {}).get("device")
        words = [f"{key}={_spelled(value)}" for key, value in arg_dict.items()]
        if device is not None:
            words.append(f"model.device={device}")
        return cls(plans_of_words([*words, "baseline=false"])[0])

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: Mapping[str, Any] | None = None
    ) -> KVBench:
        """As `create_from_arg_obj`, of one string."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    def answer(self, request: Request, variant: Variant) -> Answer | None:
        """What a variant answered to a request, if it did."""
        return self.answers.get(request.key(self.plan, variant))

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Generate greedily until a stop text, one prompt at a time."""
        asked = [generation_request(instance.args) for instance in requests]
        todo = [r for r in zip(asked, requests, strict=True) if self._missing(r[0])]
        for request, instance in tqdm(todo, "Generating", disable=disable_tqdm or not todo):
            if missing := self._missing(request):  # else asked twice
                self._generate(request, missing, str(instance.task_name))
        return [str(self._answered(request).text) for request in asked]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> Any:
        """Refuse.

        Raises:
            UserError: always.
        """
        raise UserError(ROLLING_REFUSED)

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval's results say of the model."""
        facts = {
            "model_path": self.plan.model.path,
            "model_dtype": str(self.loaded.network.dtype),
            "kvbench_variant": self.variant.label,
        }
        if len(self.plan.variants) > 1 or not self.answers:
            return facts
        ratio = fmean(answer.ledger.ratio_bytes for answer in self.answers.values())
        return {**facts, "kvbench_ratio_bytes": ratio}

    def likelihoods(
        self,
        requests: Sequence[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
    ) -> list[tuple[float, bool]]:
        """Score continuations; those of one context share its prefill and are fed together."""
        asked = [Request(*texts) for texts, _, _ in requests]
        contexts: dict[tuple[int, tuple[int, ...]], dict[Request, list[int]]] = {}
        for request, (_, context, continuation) in zip(asked, requests, strict=True):
            if self._missing(request):
                cut = max(0, len(context) + len(continuation) - self.max_length - 1)
                contexts.setdefault((cut, tuple(context[cut:])), {})[request] = continuation
        disable = disable_tqdm or not contexts
        for (cut, ids), same in tqdm(contexts.items(), "Scoring", disable=disable):
            self._score(ids, same, cut)
        return [
            (answer.log_likelihood, answer.is_greedy)  # type: ignore[misc]
            for answer in map(self._answered, asked)
        ]

    def _score(
        self, context: tuple[int, ...], continuations: Mapping[Request, list[int]], cut: int
    ) -> None:
        """Score requests of one context for the variants that lack one of them.

        The context's last token is fed after compression, so that no token of a continuation is
        predicted from the uncompressed cache.
        """
        lacking = {v.label for r in continuations for v in self._missing(r)}
        variants = [v for v in self.plan.variants if v.label in lacking]
        asked = list(continuations)
        longest = max(map(len, continuations.values()))
        work = self._work(
            "lm-eval", asked[0].context, context, len(context) - 1, longest, variants
        )
        rows = list(continuations.values())
        for i, variant, answer in scored(
            self.loaded, work, self._room, rows, _Silent(), self._take
        ):
            self._remember(asked[i], variant, replace(answer, tokens_cut=cut))

    def _generate(self, request: Request, variants: Sequence[Variant], task: str) -> None:
        settings = greedy_settings(request.settings or {}, task)
        new_tokens = settings["max_gen_toks"]
        room = self.max_length - new_tokens
        if room < 1:
            raise UserError(
                f"{task} generates {new_tokens} tokens, and {self.plan.model.name} has"
                f" {self.max_length} positions: add --gen_kwargs max_gen_toks=N after --"
            )
        until = handle_stop_sequences(
            settings["until"], eos=self.tok_decode(self.eot_token_id, skip_special_tokens=False)
        )
        ids = self.tok_batch_encode([request.context])[0][0].tolist()
        cut = max(0, len(ids) - room)
        kept = tuple(ids[cut:])

        def text_of(written: Sequence[int]) -> str:
            return str(postprocess_generated_text(self.tok_decode(list(written)), until, None))

        border = len(kept) - (self.plan.protocol.first_token == "compressed")
        work = self._work(task, request.context, kept, border, new_tokens, variants)
        stop = replace(
            work.stop,
            min_new_tokens=int(settings.get("min_new_tokens", 0)),
            ends=StopText(until, self.tokenizer),
        )
        work = replace(work, stop=stop)
        found = generated(self.loaded, work, self._room, text_of, _Silent(), self._take)
        for variant, answer in found:
            self._remember(request, variant, replace(answer, tokens_cut=cut))

    @property
    def _room(self) -> Bytes:
        return bytes_to_take(self.loaded, self.plan.memory_bytes)

    def _work(
        self,
        task: str,
        text: str,
        ids: tuple[int, ...],
        border: int,
        later_tokens: int,
        variants: Sequence[Variant],
    ) -> Work:
        """A prompt to be compressed up to `border`, at least its first token."""
        border = max(1, border)
        return Work(
            sample=_sample(task, text, later_tokens),
            head=ids[:border],
            feed=ids[border:],
            stop=Stop(self.loaded.eos_ids, later_tokens),
            variants=tuple(variants),
        )

    def _missing(self, request: Request) -> list[Variant]:
        return [v for v in self.plan.variants if self.answer(request, v) is None]

    def _answered(self, request: Request) -> Answer:
        answer = self.answer(request, self.variant)
        assert answer is not None
        return answer

    def _remember(self, request: Request, variant: Variant, answer: Answer) -> None:
        key = request.key(self.plan, variant)
        if key not in self.answers:
            self.answers[key] = answer
            self._keep(key, answer)


class _Silent:
    """Nobody is told what is being computed: lm-eval counts requests."""

    def phase(self, name: str) -> None:
        """Say nothing."""

    def generated(self, tokens: int) -> None:
        """Say nothing."""


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


def _sample(task: str, text: str, max_new_tokens: int) -> Sample:
    """A prompt of lm-eval's as the rest of kvbench knows prompts; lm-eval scores it."""
    return Sample(Task(task, task, "{context}", max_new_tokens, lambda *_: {}), "", text, "", ())
