"""Qwen2.5-7B on TT-NN. README.md beside this file says where to begin."""
