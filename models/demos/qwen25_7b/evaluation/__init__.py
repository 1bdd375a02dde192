"""A recipe's distance from Hugging Face's float32 model: teacher forcing, ablation, lm-eval's tasks."""
