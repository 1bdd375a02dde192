"""The time of a step and of a prompt: counts, host times and a model.

Run python -m models.demos.qwen25_7b.perf.
"""
