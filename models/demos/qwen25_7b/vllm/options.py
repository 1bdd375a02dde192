"""What scripts/serve.py decides before vLLM starts: the checkpoint, its commit and its name.

Modules that import torch or ttnn are imported in the functions, because the server's supervisor imports this one.
"""

import os
from pathlib import Path
from typing import Any, Optional, Sequence

from ..errors import UserError, check_integer
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


def _check_tool_parser(name: str, plugin: Optional[str], tokenizer: Any) -> None:
    """UserError for a parser of vLLM's that cannot serve this tokenizer: each chat would be a 500."""
    os.environ["VLLM_PLUGINS"] = ""  # no ttnn in this process
    from vllm.tool_parsers import ToolParserManager

    if plugin:
        ToolParserManager.import_tool_parser(plugin)
    try:
        ToolParserManager.get_tool_parser(name)(tokenizer)
    except KeyError:  # no such parser: vLLM lists them
        return
    except Exception as error:
        raise UserError(f"--tool-call-parser {name}: choose the parser of this model: {error}") from error


def checked_options(model: str, options: Sequence[str], mesh: str, folder: str) -> list[str]:
    """Return the options with the commit of a hub id, a short name and the tokenizer.

    Reads the checkpoint's small files only. mesh: as in MESH_DEVICE. folder: where vLLM is to read the tokenizer, with
    the rules of the checkpoint's own file. UserError: a checkpoint that cannot be served on this machine, or an option.
    """
    from ..config import DecoderConfig
    from ..plans.blocks import check_block
    from ..plans.parallel_plan import MAX_USERS, ParallelPlan
    from ..text.tokenizer import ChatTokenizer
    from ..weights.checkpoint import READ_FILES, local_directory

    block, sequences = (option_value(options, name) or "" for name in ("--block-size", "--max-num-seqs"))
    if block.isdecimal():
        check_block(int(block), "--block-size")
    if sequences.isdecimal():
        check_integer("--max-num-seqs", int(sequences), 1, MAX_USERS)
    directory = local_directory(model, READ_FILES, option_value(options, "--revision"))
    config = DecoderConfig.from_json(directory / "config.json")
    added = []
    if option_value(options, "--tokenizer", "--tokenizer-mode") is None:
        tokenizer = ChatTokenizer(directory, instruct=False).hf
        if name := option_value(options, "--tool-call-parser"):
            _check_tool_parser(name, option_value(options, "--tool-parser-plugin"), tokenizer)
        tokenizer.save_pretrained(folder)
        added += ["--tokenizer", folder]
    kind = BY_NAME.get(mesh.upper())  # None for the plugin's other names, such as (1, 2)
    if kind is not None:
        given = option_value(options, *REPLICAS_OPTIONS) or ""
        replicas = int(given) if given.isdecimal() else 0
        # The plugin refuses a number that does not divide the chips.
        ParallelPlan.make(config, kind.chips // replicas if replicas and kind.chips % replicas == 0 else kind.row)
    if not os.path.isdir(model):
        added += ["--revision", directory.name]  # the hub's directories are named by commits
    if option_value(options, "--served-model-name") is None:
        # Both names are answered; answers bear the first.
        added += ["--served-model-name", Path(os.path.abspath(model)).name, model]
    return [*options, *added]
