"""What a multiple-choice question shorter than the budget costs, beside lm-eval's own model.

python scripts/lm_eval_cost.py [MODEL [WORDS [CHOICES]]]     # smollm2-135m, 150 words, 4
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM

from kvbench.config.sweeper import plans_of_words
from kvbench.lmeval.model import KVBench

RUNS = 5
CHOICES = (" blue", " green and tall", " made of old wood", " by the river")
SENTENCE = "The town lies on a river and its market is held on the first day of a week."


def question(number: int, words: int, choices: int) -> list[Any]:
    """Requests of one question; each number is another context."""
    text = " ".join((f"{number}. " + f"{SENTENCE} " * words).split()[:words])
    return [
        Instance("loglikelihood", {}, (text, choice), i, ("cost", 0, 1))
        for i, choice in enumerate(CHOICES[:choices])
    ]


def seconds(model: Any, words: int, choices: int) -> list[float]:
    """Seconds of each of RUNS questions, after one that warms up."""
    found = []
    for number in range(RUNS + 1):
        started = time.perf_counter()
        model.loglikelihood(question(number, words, choices), disable_tqdm=True)
        found.append(time.perf_counter() - started)
    return found[1:]


def main(name: str = "smollm2-135m", words: str = "150", choices: str = "4") -> None:
    """Print the median and the least time of both models."""
    method = ["method=kvcrush_table2", "budget=672"]
    compressed = KVBench(plans_of_words([f"model={name}", *method, "baseline=false"])[0])
    network = compressed.loaded.network
    stock = HFLM(
        pretrained=AutoModelForCausalLM.from_pretrained(network.name_or_path, dtype=network.dtype)
        .to(network.device)
        .eval(),
        tokenizer=compressed.loaded.tokenizer,
        batch_size=len(CHOICES),
    )
    for label, model in (("lm-eval's hf", stock), ("kvbench", compressed)):
        times = seconds(model, int(words), int(choices))
        print(f"{label:14} median {statistics.median(times):.2f} s, least {min(times):.2f} s")
    whole = {answer.ledger.ratio_bytes for answer in compressed.answers.values()}
    print(
        f"ratio_bytes {whole}, {max(a.prompt_tokens for a in compressed.answers.values())} tokens"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
