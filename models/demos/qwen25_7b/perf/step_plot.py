"""Where a decode step's modelled time goes, machine beside machine, recipe beside recipe."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Sequence

from matplotlib.figure import Figure

from models.common.errors import UserError

COLOURS = {  # in the order in which a bar is built up
    "streaming weights": "#2b6cb0",
    "interleaved DRAM (cache)": "#dd6b20",
    "ethernet": "#2f855a",
    "compute": "#805ad5",
    "launches": "#8a8f98",
}

Bar = tuple[str, str, dict[str, float]]  # machine, recipe, seconds by what they go to


def modelled_elsewhere(options: Sequence[str]) -> dict[str, float]:
    """Seconds of a step by what they go to, from a process of its own: a process knows one machine.

    UserError: it failed, and has said why.
    """
    command = [sys.executable, "-m", "models.demos.qwen25_7b.perf", "model", "--json", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise UserError(f"perf model {' '.join(options)} ended with status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def draw(file: Path, title: str, bars: Sequence[Bar]) -> None:
    """A bar for each machine and recipe, machines set apart."""
    figure = Figure(figsize=(10, 1.5 + 0.42 * len(bars)), dpi=150, layout="constrained")
    axes = figure.subplots()
    places, machines = [], list(dict.fromkeys(machine for machine, _, _ in bars))
    for i, (machine, _, parts) in enumerate(bars):
        place, left = i + 0.7 * machines.index(machine), 0.0
        for part, colour in COLOURS.items():
            width = 1e3 * parts.get(part, 0.0)
            axes.barh(place, width, left=left, height=0.72, color=colour)
            left += width
        step = sum(parts.values())
        axes.annotate(f"{1e3 * step:.1f} ms, {1 / step:.0f} t/s/u", (left, place), (6, -3), textcoords="offset points")
        places.append(place)
    axes.set_yticks(places, [f"{machine}: {recipe}" for machine, recipe, _ in bars])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * max(1e3 * sum(parts.values()) for _, _, parts in bars))
    axes.set_xlabel("ms a step")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    used = [part for part in COLOURS if any(parts.get(part) for _, _, parts in bars)]
    handles = [figure.gca().barh(0, 0, color=COLOURS[part]) for part in used]
    axes.legend(handles, used, frameon=False, loc="lower right", fontsize=8)
    figure.suptitle(title, fontsize=9, x=0.01, ha="left")
    figure.savefig(file)
