"""Benchmarks: what is asked of the model and how the answer is scored."""
