"""How near a recipe comes to Hugging Face's float32: teacher forcing, ablation, and the tasks of lm-eval."""
