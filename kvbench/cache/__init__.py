"""What a compressed cache stores, what it weighs, and how it is read."""
