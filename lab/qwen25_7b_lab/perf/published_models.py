"""The context that each machine has for the models of the Qwen2.5 family."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from models.demos.qwen25_7b.config import DecoderConfig, Recipe
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.files import read_json
from models.demos.qwen25_7b.plans.blocks import BLOCK, blocks_for
from models.demos.qwen25_7b.plans.chip import Chip
from models.demos.qwen25_7b.plans.decode_plan import DecodeLayout
from models.demos.qwen25_7b.plans.machines import MACHINES, MachineKind
from models.demos.qwen25_7b.plans.memory_budget import RESERVED_BYTES, fits, largest, memory_budget
from models.demos.qwen25_7b.plans.model_table import ModelTable
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS, SPLITS, ParallelPlan
from models.demos.qwen25_7b.plans.planner import check_decode, max_prefill_rows

from ..options import markdown

SHORTEST = 1024  # tokens: a context below this is no use for 32 users, so fewer users get this one

# config.json's fields of Qwen2.5 by size, with Coder's 32768 positions, and of other families that are published for
# these machines.
SIZES, FAMILIES = (
    {name: DecoderConfig.from_dict(fields, source=name) for name, fields in models.items()}
    for models in read_json(Path(__file__).with_name("sizes.json")).values()
)
LONGEST = 131072  # positions of a checkpoint of the family, without the 1M models
QWEN25 = {f"Qwen2.5-{name}": replace(config, max_position_embeddings=LONGEST) for name, config in SIZES.items()}


def dram_for_model(chip: Chip) -> int:
    """Bytes of a chip's DRAM for the model and its cache."""
    return chip.dram_bytes - RESERVED_BYTES


def largest_split(config: DecoderConfig, recipe: Recipe, kind: MachineKind, tp: int) -> tuple[int, int]:
    """Users, and the tokens of each, that `tp` chips of a machine's row hold: 32 users, or fewer with 1024 tokens.

    UserError if an op of the model has no plan on this split, or its weights do not fit a chip's DRAM.
    """
    table, dram = planned_table(config, recipe, kind, tp), dram_for_model(kind.chip)
    shortest = min(SHORTEST, config.context)
    if fits(dram, table, MAX_USERS, shortest):
        return MAX_USERS, largest(config.context, lambda tokens: fits(dram, table, MAX_USERS, tokens))
    users = largest(MAX_USERS, lambda n: fits(dram, table, n, shortest))
    if not users:
        budget = memory_budget(table, shortest, blocks_for(1, shortest, BLOCK))
        raise UserError(
            f"tp {tp}: a chip has {dram / 1e9:.2f} GB, one user of {shortest} tokens needs {budget.total / 1e9:.2f}: "
            "use more chips a replica (tp), or a smaller recipe"
        )
    return users, shortest


def planned_table(config: DecoderConfig, recipe: Recipe, kind: MachineKind, tp: int) -> ModelTable:
    """The model on `tp` chips of a machine's row. UserError: an op of a step or of a prefill has no plan there."""
    table = ModelTable(config, ParallelPlan.make(config, tp), recipe, kind.chip)
    chips = config, table.parallel, kind.chip, MAX_USERS
    topology, sums = "ring" if kind.is_ring(tp) else "line", recipe.all_reduce_dtype
    decode = DecodeLayout.make(*chips, topology=topology, partial_sums=sums, links=kind.links)
    check_decode(table, decode)
    max_prefill_rows(table, decode.layer_l1)
    return table


def context_contract(config: DecoderConfig, recipes: dict[str, Recipe]) -> list[dict[str, Any]]:
    """The context that one user gets on a whole row of each machine, with the bytes of a chip that it takes.

    Where DRAM prevents the model's context, also the bytes that the model's context would take.
    """
    entries = []
    for kind in MACHINES.values():
        for name, recipe in recipes.items():
            entry: dict[str, Any] = dict(machine=kind.name, recipe=name, model_context=config.context)
            try:
                tp = max(
                    n for n in SPLITS if kind.row % n == 0 and ParallelPlan.deals_out(config.num_key_value_heads, n)
                )
                table = planned_table(config, recipe, kind, tp)
                longest = largest(config.context, lambda tokens: fits(dram_for_model(kind.chip), table, 1, tokens))
                budget = lambda tokens: vars(memory_budget(table, tokens, blocks_for(1, tokens, BLOCK)))
                entry |= dict(tp=tp, context=longest, room=dram_for_model(kind.chip), bytes=budget(longest))
                if longest < config.context:
                    entry["bytes_of_model_context"] = budget(config.context)
            except UserError as error:
                entry["refused"] = f"{error}"
            entries.append(entry)
    return entries


def models_table(models: dict[str, DecoderConfig], recipe: Recipe) -> str:
    """The longest context of each model on a row of every machine, and below the table the reasons of refusals."""
    reasons: list[str] = []

    def cell(config: DecoderConfig, kind: MachineKind) -> str:
        try:
            users, tokens = largest_split(config, recipe, kind, kind.row)
        except UserError as error:
            if f"{error}" not in reasons:
                reasons.append(f"{error}")
            return f"no ({reasons.index(f'{error}') + 1})"
        return f"{tokens:,}" if users == MAX_USERS else f"{tokens:,} for {users}"

    # Machines with equal cells share a column.
    columns: dict[tuple[str, ...], list[str]] = {}
    for kind in MACHINES.values():
        cells = f"tp {kind.row}", *(cell(config, kind) for config in models.values())
        columns.setdefault(cells, []).append(kind.name)
    title = (
        f"Recipe {recipe}. The longest context of each of {MAX_USERS} users, or of fewer, where a row of a machine is "
        "one replica (tp). A machine with a smaller tp has the context of the machine of so many chips."
    )
    header = "checkpoint", *(f"{', '.join(names)}, {cells[0]}" for cells, names in columns.items())
    table = markdown(header, zip(models, *(cells[1:] for cells in columns)))
    return "\n\n".join([title, table, "\n".join(f"{i}. {r}" for i, r in enumerate(reasons, 1))])
