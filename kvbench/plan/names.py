"""Names that several packages share."""

SAMPLE = "sample"
"""The setting `data` that reads the suite that ships with kvbench."""

LM_EVAL = "lm-eval"
"""What stands for the suite in headers and records of lm-evaluation-harness."""

BASELINE = "fullkv"
"""The method, a file stem in conf/method, that every table compares with."""

FIGURES = ("sparsity", "similarity", "overlap", "kept", "attention")
"""What a prefill looks like inside: the papers' observations on any model."""

SPEED = "speed"
"""`kvbench bench speed`, kept in the run folder."""

CLASSIFIER = "classifier"
"""`kvbench train-classifier`, into the run folder."""

ANALYSES = (*FIGURES, SPEED, CLASSIFIER)
"""Values of the setting `analysis`."""
