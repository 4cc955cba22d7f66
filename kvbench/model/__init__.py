"""Models and the one attention function that serves them."""
