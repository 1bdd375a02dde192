"""One module a command: its docstring is what --help says, `add_options` its options, `execute` what it does."""

from models.demos.qwen25_7b.loading.commands import listing, prune, verify

COMMANDS = {"list": listing, "verify": verify, "prune": prune}
