"""The commands behind python -m models.demos.qwen25_7b.evaluation; each takes options, and prints and writes what it says."""
