"""Evaluates KV cache compression methods on real models."""

__version__ = "0.1.0"
