"""lm-evaluation-harness under a compressed cache: its tasks and metrics, kvbench's cache.

`command` is `kvbench lm-eval`: it takes the words, `loading` the tasks, and `evaluation` runs them.
`model` is what lm-eval calls, with `requests`; `answers` computes; `results` are the records.
Everything but `command` and `answers` imports lm-eval (extra `lmeval`).
"""
