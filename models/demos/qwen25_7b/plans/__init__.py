"""How the modules run, as values: pure functions of the model's and the chips' numbers. Nothing here touches a device."""
