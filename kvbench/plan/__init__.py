"""What a run does, frozen."""
