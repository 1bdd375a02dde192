"""Weights in block floats that keep a model's answers, in checkpoints that any loader reads."""
