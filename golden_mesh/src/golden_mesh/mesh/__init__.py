"""The chips: calls, their memory, traces, and tensors from and to the host."""
