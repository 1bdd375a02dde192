"""Hugging Face as the reference, and the small checkpoint with the script that trained it."""
