"""What a step is made of, and a model of what it costs: python -m models.demos.qwen25_7b.perf"""
