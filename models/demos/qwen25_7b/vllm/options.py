"""What scripts/serve.py decides before vLLM starts: the checkpoint, its commit and its name.

Modules that import torch or ttnn are imported in the functions, because the server's supervisor imports this one.
"""

import os
from pathlib import Path
from typing import Optional, Sequence

from ..plans.machines import BY_NAME

REPLICAS_OPTIONS = ("--data-parallel-size", "-dp")


def option_value(options: Sequence[str], *names: str) -> Optional[str]:
    """Return the last value of an option in vLLM's command line, None without it. vLLM takes a_b for a-b."""
    found = None
    for option, following in zip(options, [*options[1:], ""]):
        name, equals, value = option.partition("=")
        if name.replace("_", "-") in names:
            found = value if equals else following
    return found


def checked_options(model: str, options: Sequence[str], mesh: str) -> list[str]:
    """Return the options with the commit of a hub id and a short name. Reads the checkpoint's small files only.

    mesh: as in MESH_DEVICE. UserError: a checkpoint that cannot be served on this machine.
    """
    from ..config import DecoderConfig
    from ..plans.parallel_plan import ParallelPlan
    from ..weights.checkpoint import READ_FILES, local_directory

    directory = local_directory(model, READ_FILES, option_value(options, "--revision"))
    config = DecoderConfig.from_json(directory / "config.json")
    kind = BY_NAME.get(mesh.upper())  # None for the plugin's other names, such as (1, 2)
    if kind is not None:
        given = option_value(options, *REPLICAS_OPTIONS) or ""
        replicas = int(given) if given.isdecimal() else 0
        # The plugin refuses a number that does not divide the chips.
        ParallelPlan.make(config, kind.chips // replicas if replicas and kind.chips % replicas == 0 else kind.row)
    added = []
    if not os.path.isdir(model):
        added += ["--revision", directory.name]  # the hub's directories are named by commits
    if option_value(options, "--served-model-name") is None:
        # Both names are answered; answers bear the first.
        added += ["--served-model-name", Path(os.path.abspath(model)).name, model]
    return [*options, *added]
