"""What is measured instead of answers: a prefill layer by layer, speed, or the task classifier."""

FIGURES = ("sparsity", "similarity", "overlap", "kept", "attention")
"""What a prefill looks like inside: the papers' observations on any model."""

SPEED = "speed"
"""`kvbench bench speed`, kept in the run folder."""

CLASSIFIER = "classifier"
"""`kvbench train-classifier`, into the run folder."""

ANALYSES = (*FIGURES, SPEED, CLASSIFIER)
"""Values of the setting `analysis`."""
