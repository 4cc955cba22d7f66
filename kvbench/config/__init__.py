"""From words to plans: the only home of Hydra."""
