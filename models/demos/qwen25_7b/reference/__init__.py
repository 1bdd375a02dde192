"""Hugging Face as the reference, and the small checkpoint."""
