"""The commands behind python -m models.demos.qwen25_7b.perf; each says what it prints, takes options and returns text."""
