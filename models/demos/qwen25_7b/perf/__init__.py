"""What a decode step is made of, and a model of what it costs: behind perf_ops.py and perf_model.py."""
