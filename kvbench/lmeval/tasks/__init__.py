"""Task files that lm-eval lacks, and the functions that they name."""
