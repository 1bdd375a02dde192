"""The time of a step and of a prompt: counts and a model. Run python -m qwen25_7b_lab.perf."""
