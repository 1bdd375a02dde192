"""What only vLLM and its plugin need."""
