"""One module a command: its docstring is what --help says, `add_options` its options, `run` what it does."""
