"""The engine: tokens of prompts in, tokens out. Slots, cache blocks, traces and sampling."""
