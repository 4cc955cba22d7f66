"""Prompts equal the official code's, token for token, and the context ends where it does."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.base.errors import UserError
from kvbench.tasks.prompt import Prompt, PromptRules, input_limit, render
from kvbench.tasks.task import Sample, Task
from support.tokenizers import CHATML, STRIPPING, byte_bpe, metaspace_bpe

NONE = PromptRules(chat_template="none")
OFFICIAL = PromptRules()
LLAMA2 = PromptRules(chat_template="llama2")

WITHOUT_BOS = CHATML.replace("{{ bos_token }}", "")

WORDS = [
    "the",
    " the",
    "Now",
    " Now",
    "answer",
    " answer",
    " question",
    "\n\n",
    "Q:",
    "é",
    "北京",
    "🙂",
]


PLAIN = byte_bpe()
TOKENIZERS = {"byte": PLAIN, "metaspace": metaspace_bpe()}

TEMPLATE = "Read.\n\n{context}\n\nNow, answer.\n\nQuestion: {input}\nAnswer:"


def sample(context: str, question: str = "What is it?", **changes: Any) -> Sample:
    fields: dict[str, Any] = {"template": TEMPLATE, "max_new_tokens": 8, **changes}
    task = Task(name="qasper", group="QA", score=lambda p, s: {"f1": 0.0}, **fields)
    return Sample(task, "id7", context, question, ("x",))


def text_of(tokenizer: Any, ids: tuple[int, ...]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False))


def parts(tokenizer: Any, prompt: Prompt) -> tuple[str, str]:
    """The text before the border and after it."""
    before, after = prompt.ids[: prompt.context_end], prompt.ids[prompt.context_end :]
    return text_of(tokenizer, before), text_of(tokenizer, after)


def official_ids(sample: Sample, tokenizer: Any, max_length: int, wrap: str = "{}") -> list[int]:
    """pred.py's steps, spelled out: format, tokenize, cut the middle, tokenize again."""
    prompt = wrap.format(sample.task.template.format(context=sample.context, input=sample.input))
    ids = tokenizer(prompt, verbose=False).input_ids
    if len(ids) > max_length:
        half = int(max_length / 2)
        prompt = tokenizer.decode(ids[:half], skip_special_tokens=True)
        prompt += tokenizer.decode(ids[-half:], skip_special_tokens=True)
    return list(tokenizer(prompt, verbose=False).input_ids)


TEXTS = st.lists(st.sampled_from([*WORDS, "{input}", "{context}", "{}"]), max_size=40).map("".join)


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
@given(context=TEXTS, question=TEXTS, max_length=st.integers(2, 120))
@settings(max_examples=60, deadline=None)
def test_ids_equal_the_official_steps(
    name: str, context: str, question: str, max_length: int
) -> None:
    tokenizer, one = TOKENIZERS[name], sample(context, question)
    prompt = render(one, tokenizer, NONE, max_input_tokens=max_length)
    assert list(prompt.ids) == official_ids(one, tokenizer, max_length)
    paper = render(one, tokenizer, LLAMA2, max_input_tokens=max_length)
    assert list(paper.ids) == official_ids(one, tokenizer, max_length, "[INST] {} [/INST]")


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
@given(context=TEXTS, question=TEXTS)
@settings(max_examples=60, deadline=None)
def test_an_uncut_prompt_splits_at_the_end_of_the_context(
    name: str, context: str, question: str
) -> None:
    tokenizer = TOKENIZERS[name]
    prompt = render(sample(context, question), tokenizer, NONE)
    full = TEMPLATE.format(context=context, input=question)
    border = full.index("Read.\n\n") + len("Read.\n\n" + context)
    # The naive twin: the longest run of tokens whose own text stays before the border. The
    # tokenizers lose nothing, so a run of whole characters decodes to a prefix of the text.
    kept = [
        n
        for n in range(1, len(prompt.ids) + 1)
        if full[:border].startswith(
            tokenizer.decode(prompt.ids[:n], skip_special_tokens=True).rstrip("\ufffd")
        )
    ]
    assert abs(prompt.context_end - max(kept)) <= 3  # bytes of one character share one end
    before = tokenizer.decode(prompt.ids[: prompt.context_end], skip_special_tokens=True)
    assert full[:border].startswith(before)
    assert len(full[:border]) - len(before) <= 12  # a token that spans the border
    assert prompt.tokens_cut == 0


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
@pytest.mark.parametrize("rules", [NONE, LLAMA2])
@pytest.mark.parametrize("max_length", [90, 91, 120, 200])
def test_the_border_survives_truncation(name: str, rules: PromptRules, max_length: int) -> None:
    tokenizer = TOKENIZERS[name]
    context = "".join(random.Random(max_length).choices(WORDS, k=300)) + "."
    one = sample(context, "Who?")
    prompt = render(one, tokenizer, rules, max_input_tokens=max_length)
    tail = one.task.template.format(context="", input="Who?").removeprefix("Read.\n\n")
    tail += " [/INST]" if rules is LLAMA2 else ""
    assert parts(tokenizer, prompt)[1].strip() == tail.strip()
    assert prompt.tokens_cut == len(render(one, tokenizer, rules)) - max_length // 2 * 2


def test_a_question_longer_than_half_the_limit_starts_at_the_seam() -> None:
    one = sample("the text " * 30, "who or what " * 60)
    prompt = render(one, PLAIN, NONE, max_input_tokens=40)
    ids = PLAIN(TEMPLATE.format(context=one.context, input=one.input), verbose=False).input_ids
    assert text_of(PLAIN, prompt.ids[1 : prompt.context_end]) == PLAIN.decode(ids[1:20])


def test_a_context_shorter_than_half_the_limit_keeps_its_end_as_the_border() -> None:
    one = sample("the text", "who or what " * 90)
    prompt = render(one, PLAIN, NONE, max_input_tokens=100)
    assert parts(PLAIN, prompt)[0] == "<s>Read.\n\nthe text"


def test_a_prompt_at_the_limit_is_not_cut() -> None:
    one = sample("the text")
    whole = render(one, PLAIN, NONE)
    assert render(one, PLAIN, NONE, max_input_tokens=len(whole)) == whole
    assert render(one, PLAIN, NONE, max_input_tokens=len(whole) - 1).tokens_cut > 0


def test_a_prompt_that_ends_with_its_context_is_all_context() -> None:
    prompt = render(sample("the text", template="{input}\n{context}"), PLAIN, NONE)
    assert prompt.context_end == len(prompt.ids)
    assert parts(PLAIN, prompt)[0] == "<s>What is it?\nthe text"


@pytest.mark.parametrize("template", [CHATML, STRIPPING, WITHOUT_BOS])
@pytest.mark.parametrize("max_length", [None, 60])
def test_the_chat_template_goes_around_the_cut_prompt_with_one_beginning(
    template: str, max_length: int | None
) -> None:
    tokenizer = byte_bpe(template)
    one = sample("  \n the text" * 40, "Who?", template=TEMPLATE[7:] + " ")
    prompt = render(one, tokenizer, OFFICIAL, max_input_tokens=max_length)
    text = text_of(tokenizer, prompt.ids)
    assert text.startswith("<s><|user|>\n")
    space = "" if template is STRIPPING else " "
    assert text.endswith(f"Answer:{space}<|end|>\n<|assistant|>\n")
    assert prompt.ids.count(tokenizer.bos_token_id) == 1
    assert parts(tokenizer, prompt)[1].startswith("\n\nNow, answer.\n\nQuestion: Who?")
    assert prompt.chat_template == "official"


def test_tasks_that_take_no_chat_template_get_none_unless_the_profile_wraps_all() -> None:
    one = sample("the text", chat_template=False)
    plain = render(one, byte_bpe(CHATML), OFFICIAL)
    assert plain.ids == render(one, PLAIN, NONE).ids
    assert plain.chat_template == "none"
    assert text_of(PLAIN, render(one, PLAIN, LLAMA2).ids).startswith("<s>[INST] Read.")


def test_a_base_model_without_a_chat_template_gets_none() -> None:
    assert render(sample("the text"), PLAIN, OFFICIAL).chat_template == "none"


def test_llama2_is_wrapped_before_truncation_so_its_marks_can_be_all_that_is_left() -> None:
    prompt = render(sample("the text " * 90), PLAIN, LLAMA2, max_input_tokens=30)
    assert text_of(PLAIN, prompt.ids).startswith("<s>[INST] ")
    assert text_of(PLAIN, prompt.ids).endswith(" [/INST]")
    assert len(prompt.ids) <= 31  # the seam may tokenize differently


def test_a_text_that_brings_its_own_beginning_gets_no_second_one() -> None:
    prompt = render(sample("the text", template="<s>{context}{input}"), PLAIN, NONE)
    assert prompt.ids.count(PLAIN.bos_token_id) == 1


def test_carriage_returns_reach_the_model() -> None:
    assert "a\r\nb" in text_of(PLAIN, render(sample("a\r\nb"), PLAIN, NONE).ids)


def test_without_a_limit_the_context_leaves_room_for_template_and_answer() -> None:
    tokenizer = byte_bpe(CHATML)
    one = sample("the text " * 200, max_new_tokens=32)
    prompt = render(one, tokenizer, OFFICIAL, context_limit=200)
    limit = input_limit(200, one.task, tokenizer, OFFICIAL)
    assert prompt.tokens_cut > 0
    assert limit < 200 - 32 == input_limit(200, one.task, tokenizer, NONE)
    assert 200 - 32 - 2 <= len(prompt) <= 200 - 32 + 2  # the seam may tokenize differently
    with pytest.raises(UserError, match="a context of 33 tokens has no room for qasper"):
        input_limit(33, one.task, PLAIN, NONE)


def test_a_prompt_longer_than_the_context_names_sample_tokens_limit_and_remedy() -> None:
    one = sample("the text " * 50)
    tokens = len(render(one, PLAIN, NONE))
    with pytest.raises(UserError) as error:
        render(one, PLAIN, PromptRules("none", "none"), max_input_tokens=10, context_limit=50)
    said = f"sample id7 of qasper has {tokens} tokens, more than the model's 50: set "
    assert str(error.value).startswith(said + "protocol.truncation=middle")
    with pytest.raises(UserError, match="set max_input_tokens below 50"):
        render(one, PLAIN, NONE, max_input_tokens=tokens, context_limit=50)


def test_the_text_hash_follows_the_text_alone() -> None:
    one = render(sample("the text"), PLAIN, NONE)
    assert one.text_hash == render(sample("the text"), PLAIN, OFFICIAL).text_hash
    assert one.text_hash != render(sample("the  text"), PLAIN, NONE).text_hash
    assert len(one.text_hash) == 32


@pytest.mark.parametrize("changes", [{"truncation": "left"}, {"chat_template": "chatml"}])
def test_unknown_rules_are_named_with_the_known_ones(changes: dict[str, str]) -> None:
    with pytest.raises(UserError, match="is unknown: give one of"):
        PromptRules(**changes)


def test_a_limit_too_small_to_halve_is_refused() -> None:
    with pytest.raises(UserError, match="max_input_tokens 1 is too small"):
        render(sample("the text"), PLAIN, NONE, max_input_tokens=1)


def test_a_slow_tokenizer_is_refused_by_name() -> None:
    class SlowTokenizer:
        is_fast = False

    with pytest.raises(UserError, match="SlowTokenizer is not a fast tokenizer"):
        render(sample("the text"), SlowTokenizer(), NONE)
