"""lm-evaluation-harness under a compressed cache: its tasks and metrics, kvbench's cache.

`answers` computes, `model` is what lm-eval calls, `command` is `kvbench lm-eval`, `results` are its
records. Only `command` and `model` import lm-eval (extra `lmeval`).
"""
