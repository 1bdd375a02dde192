"""What scripts/serve.py decides before vLLM starts: the checkpoint, its commit and its name.

Modules that import torch or ttnn are imported in the functions, because the server's supervisor imports this one.
"""

import os
from pathlib import Path
from typing import Optional, Sequence

from models.common.errors import UserError
from models.common.machines import BY_NAME, MachineKind, machine

REPLICAS_OPTIONS = ("--data-parallel-size", "-dp")
# vLLM's data parallelism over hosts, which docs/serving.md was tried with ("More than one machine").
HOSTS_OPTIONS = (
    "--data-parallel-size-local", "-dpl", "--data-parallel-start-rank", "-dpr", "--data-parallel-rank", "-dpn",
    "--data-parallel-address", "-dpa", "--data-parallel-hybrid-lb", "-dph", "--data-parallel-external-lb", "-dpe",
    "--headless", "-nr", "--nnodes", "-n",
)  # fmt: skip
TAKES = (
    "Takes Qwen2 and Qwen2.5 text checkpoints: architecture Qwen2ForCausalLM, safetensors files, unquantized, no "
    "sliding window, rope scaling none or YaRN."
)


def option_value(options: Sequence[str], *names: str) -> Optional[str]:
    """Return the last value of an option in vLLM's command line, None without it. vLLM takes a_b for a-b."""
    found = None
    for option, following in zip(options, [*options[1:], ""]):
        name, equals, value = option.partition("=")
        if name.replace("_", "-") in names:
            found = value if equals else following
    return found


def has_option(options: Sequence[str], *names: str) -> bool:
    return option_value(options, *names) is not None


def checked_options(model: str, options: Sequence[str], mesh: str) -> list[str]:
    """Return the options with the commit of a hub id and a short name. Reads the checkpoint's small files only.

    mesh: as in MESH_DEVICE. UserError: a checkpoint or option that cannot be served.
    """
    from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig
    from models.demos.qwen25_7b.weights.checkpoint import (
        SMALL_FILES,
        local_directory,
        snapshot_commit,
    )

    for name in HOSTS_OPTIONS:
        if has_option(options, name):
            raise UserError(
                f"{name}: this server is one host's; start one on each host, behind a load balancer (docs/serving.md, "
                "More than one machine)"
            )
    directory = local_directory(model, SMALL_FILES, option_value(options, "--revision"))
    config = QwenConfig.from_json(directory / "config.json")
    kind = BY_NAME.get(mesh.upper())  # None for the plugin's other names, such as (1, 2)
    if kind is not None:
        ParallelPlan.make(config, _chips_of_replica(options, kind))
    added = []
    commit = None if os.path.isdir(model) else snapshot_commit(directory)
    if commit:
        added += ["--revision", commit]
    if not has_option(options, "--served-model-name"):
        # Both names are answered; answers bear the first.
        added += ["--served-model-name", Path(os.path.abspath(model)).name, model]
    return [*options, *added]


def _chips_of_replica(options: Sequence[str], kind: MachineKind) -> int:
    """Return the chips of a replica: those of a row, or the machine's by --data-parallel-size."""
    given = option_value(options, *REPLICAS_OPTIONS) or ""
    replicas = int(given) if given.isdecimal() else 0
    # The plugin refuses a number that does not divide the chips.
    return kind.chips // replicas if replicas and kind.chips % replicas == 0 else kind.row


def listing(mesh: str) -> str:
    """Return the checkpoints that a server takes, with what a replica on a row of the machine's chips holds."""
    from models.demos.qwen25_7b.config import BFP8
    from models.demos.qwen25_7b.perf.published_models import published_models
    from models.demos.qwen25_7b.plans.smallest_split import largest_split

    kind = machine(mesh, "MESH_DEVICE")
    lines = [
        TAKES,
        f"On {kind.name}, recipe {BFP8}, users of a replica x the longest context of each:",
    ]
    for name, config in published_models().items():
        try:
            lines.append(f"  {name}: {largest_split(config, BFP8, kind, kind.row)} tokens")
        except UserError as error:
            lines.append(f"  {name}: no: {error}")
    lines.append(
        "Base models have the dims of their Instruct models. Any size: python -m models.demos.qwen25_7b.perf models "
        "--config FILE"
    )
    return "\n".join(lines)
