"""Training: the loop, one step, resuming and evaluation."""
