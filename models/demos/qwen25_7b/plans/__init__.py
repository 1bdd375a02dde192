"""How the modules run, as values: pure functions of the model's and the chips' numbers, without a device."""
