"""Serving: prompts in, tokens out, over the modules of tt/."""
