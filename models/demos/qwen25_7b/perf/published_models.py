"""The splits that hold each checkpoint of the Qwen2.5 family on every machine."""

from dataclasses import replace
from typing import Any

from ..cli.terminal import markdown
from ..config import QWEN25_7B, DecoderConfig, Recipe
from ..config.rope import Llama3
from ..errors import UserError
from ..plans.blocks import BLOCK, blocks_for
from ..plans.chip import Chip
from ..plans.decode_plan import DecodePlan
from ..plans.machines import MACHINES, MachineKind
from ..plans.memory_budget import RESERVED_BYTES, fits_in, largest, memory_budget
from ..plans.model_table import ModelTable
from ..plans.parallel_plan import MAX_USERS, SPLITS, ParallelPlan
from ..plans.planner import check_decode, max_prefill_rows

SHORTEST = 1024  # tokens: a context below this is no use for 32 users, so fewer users get this one


def _size(
    layers: int, hidden: int, heads: int, kv_heads: int, mlp: int, vocab: int, tied: bool = False
) -> DecoderConfig:
    """As Qwen2.5-Coder has it: with 32768 positions."""
    return replace(
        QWEN25_7B,
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate_size=mlp,
        vocab_size=vocab,
        tie_word_embeddings=tied,
    )


SIZES = {
    "0.5B": _size(24, 896, 14, 2, 4864, 151936, tied=True),
    "1.5B": _size(28, 1536, 12, 2, 8960, 151936, tied=True),
    "3B": _size(36, 2048, 16, 2, 11008, 151936, tied=True),
    "7B": QWEN25_7B,
    "14B": _size(48, 5120, 40, 8, 13824, 152064),
    "32B": _size(64, 5120, 40, 8, 27648, 152064),
    "72B": _size(80, 8192, 64, 8, 29568, 152064),
}


# Other families that are published for these machines, from their config.json.
FAMILIES = {
    "Qwen3-8B": replace(
        _size(36, 4096, 32, 8, 12288, 151936),
        architecture="Qwen3ForCausalLM",
        qkv_bias=False,
        head_norms=True,
        max_position_embeddings=40960,
    ),
    "Llama-3.1-8B": replace(
        _size(32, 4096, 32, 8, 14336, 128256),
        architecture="LlamaForCausalLM",
        qkv_bias=False,
        rms_norm_eps=1e-5,
        rope_theta=5e5,
        rope_scaling=Llama3(
            factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
        ),
        max_position_embeddings=131072,
        bos_token_id=128000,
        eos_token_ids=(128001, 128008, 128009),
    ),
}


LONGEST = 131072  # positions of a checkpoint of the family, without the 1M models
QWEN25 = {f"Qwen2.5-{name}": replace(config, max_position_embeddings=LONGEST) for name, config in SIZES.items()}


def room_of(chip: Chip) -> int:
    """Bytes of a chip's DRAM for the model and its cache."""
    return chip.dram_bytes - RESERVED_BYTES


def largest_split(config: DecoderConfig, recipe: Recipe, kind: MachineKind, tp: int) -> tuple[int, int]:
    """Users, and the tokens of each, that `tp` chips of a machine's row hold: 32 users, or fewer with 1024 tokens.

    UserError if an op of the model has no plan on this split, or its weights do not fit a chip's DRAM.
    """
    table = ModelTable(config, ParallelPlan.make(config, tp), recipe, kind.chip)
    largest_batch(config, recipe, kind, tp)
    room = room_of(kind.chip)
    fits = fits_in(room, table)
    shortest = min(SHORTEST, config.context)
    if fits(MAX_USERS, shortest):
        longest = largest(config.context, lambda tokens: fits(MAX_USERS, tokens))
        return MAX_USERS, longest
    users = largest(MAX_USERS, lambda n: fits(n, shortest))
    if not users:
        budget = memory_budget(table, shortest, blocks_for(1, shortest, BLOCK))
        raise UserError(
            f"tp {tp}: a chip has {room / 1e9:.2f} GB, one user of {shortest} tokens needs {budget.total / 1e9:.2f}: "
            "use more chips a replica (tp), or a smaller recipe"
        )
    return users, shortest


def largest_batch(config: DecoderConfig, recipe: Recipe, kind: MachineKind, tp: int) -> int:
    """Rows of the largest prefill batch on `tp` chips of a machine's row. UserError: an op has no plan there."""
    table = ModelTable(config, ParallelPlan.make(config, tp), recipe, kind.chip)
    decode = DecodePlan.make(
        config,
        table.parallel,
        kind.chip,
        MAX_USERS,
        topology="ring" if kind.is_ring(tp) else "line",
        partial_sums=recipe.all_reduce_dtype,
        links=kind.links,
    )
    check_decode(table, decode)
    return max_prefill_rows(table, decode.l1_room)


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
                largest_batch(config, recipe, kind, tp)
                table = ModelTable(config, ParallelPlan.make(config, tp), recipe, kind.chip)
                longest = largest(config.context, lambda tokens: fits_in(room_of(kind.chip), table)(1, tokens))
                budget = lambda tokens: vars(memory_budget(table, tokens, blocks_for(1, tokens, BLOCK)))
                entry |= dict(tp=tp, context=longest, room=room_of(kind.chip), bytes=budget(longest))
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
