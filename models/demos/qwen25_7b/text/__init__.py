"""Between text and tokens: tokenizer, stop strings, generation_config, and checks of a request."""
