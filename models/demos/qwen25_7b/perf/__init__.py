"""The time of a step and of a prompt: counts and a model. Run python -m models.demos.qwen25_7b.perf."""
