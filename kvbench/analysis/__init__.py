"""What is measured instead of answers: a prefill layer by layer, speed, the task classifier."""
