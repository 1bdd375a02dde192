"""A recipe's distance from Hugging Face's float32 model: teacher forcing, and lm-eval's tasks."""
