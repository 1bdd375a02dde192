"""Draw what a decode step of 32 users waits for on each machine: docs/step_parts.svg. Needs matplotlib; takes minutes.

python lab/step_picture.py models/demos/qwen25_7b/docs/step_parts.svg
"""

import re
import subprocess
import sys

from matplotlib.figure import Figure

STEPS = (("N150", 1), ("N300", 2), ("N150x4", 4), ("T3K", 8), ("GALAXY", 8))
RECIPE = "performance"
PARTS = ("weights", "attention and cache", "collectives", "small operations", "gaps")


def parts_of(report: str) -> dict[str, float]:
    """Milliseconds by part, from the text of perf model."""
    line = next(line for line in report.splitlines() if line.startswith("Parts in ms"))
    return {name: float(ms) for name, ms in re.findall(r"([a-z][a-z ]*) ([\d.]+)[,.](?= |$)", line.split(": ", 1)[1])}


def every_step() -> dict[str, dict[str, float]]:
    """The parts of a step of 32 users on each machine. A process each: a golden mesh is one machine."""
    steps = {}
    for mesh, tp in STEPS:
        model = [sys.executable, "-m", "qwen25_7b_lab.perf", "model", "--mesh", mesh, "--recipe", RECIPE]
        done = subprocess.run(model, stdout=subprocess.PIPE, text=True, check=True)
        steps[f"{mesh}, tp {tp}"] = parts_of(done.stdout)
    return steps


def draw(file: str, steps: dict[str, dict[str, float]]) -> None:
    """A stacked bar for each step. steps: milliseconds by part."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    axes, left = figure.subplots(), [0.0] * len(steps)
    for part in PARTS:
        widths = [parts.get(part, 0.0) for parts in steps.values()]
        axes.barh(list(steps), widths, left=left, label=part)
        left = [at + width for at, width in zip(left, widths)]
    axes.bar_label(axes.containers[-1], [f" {end:.0f}" for end in left])
    axes.invert_yaxis()
    title = f"Qwen2.5-7B, 32 users a replica at position 1,024, recipe {RECIPE}"
    axes.set(xlabel="ms of a step (modeled, not measured)", title=title)
    axes.legend(fontsize="small")
    figure.savefig(file)


if __name__ == "__main__":
    draw(sys.argv[1], every_step())
