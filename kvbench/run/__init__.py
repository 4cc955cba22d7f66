"""The loop: sample, prompt, prefill, compress, decode, score, record."""
