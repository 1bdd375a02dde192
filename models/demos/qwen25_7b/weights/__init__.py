"""From a Hugging Face checkpoint to each chip's slices."""
