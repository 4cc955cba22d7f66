"""Every shipped method, as its YAML in conf/method makes it."""

from __future__ import annotations

from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from omegaconf import OmegaConf

from kvbench.compress.method import Method
from kvbench.config.words import hydra_words
from support.paths import CONF

CHOICES = sorted(p.stem for p in (CONF / "method").glob("*.yaml"))
assert CHOICES


def composed(*words: str) -> Method:
    """The method that the words of a run make."""
    with initialize_config_module("kvbench.conf", version_base="1.3"):
        node = compose("config", hydra_words(words)).method
    method = instantiate(OmegaConf.to_container(node, resolve=True), _convert_="all")
    assert isinstance(method, Method)
    return method


METHODS = {choice: composed(f"method={choice}") for choice in CHOICES}
