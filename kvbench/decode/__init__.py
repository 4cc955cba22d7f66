"""Decoding from compressed caches."""
