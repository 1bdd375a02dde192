"""The commands behind python -m models.demos.qwen25_7b.perf; each says what it prints, takes options and returns text."""

from models.demos.qwen25_7b.perf.commands import host, l1, matmuls, model, ops, speculate, splits

COMMANDS = {
    "ops": ops,
    "model": model,
    "matmuls": matmuls,
    "splits": splits,
    "l1": l1,
    "host": host,
    "speculate": speculate,
}
