"""The commands behind python -m models.demos.qwen25_7b.evaluation; each takes options, and says and writes what it found."""

from models.demos.qwen25_7b.evaluation.commands import ablate, evaluate, reference, smollm2, tasks

COMMANDS = {"eval": evaluate, "ablate": ablate, "reference": reference, "tasks": tasks, "smollm2": smollm2}
