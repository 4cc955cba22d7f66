"""Hand-written material of the sample suite and the rules that put it together."""
