"""What a prefill looks like inside, layer by layer: the papers' observations on any model."""

ANALYSES = ("sparsity", "similarity", "overlap", "kept", "attention")
"""Values of the setting `analysis`."""
