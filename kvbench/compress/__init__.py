"""The contract of a method, and what methods share."""
