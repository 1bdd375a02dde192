"""Weights in block floats that keep a model's answers: what a loader, ours or Hugging Face's, reads like any checkpoint."""
