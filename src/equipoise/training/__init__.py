"""The training loop: settings, steps, checkpoints, precision, and ranks."""
