"""Prefill batches of several prompts, counted: one prompt after the other and packed. No device."""

from ..cli.terminal import markdown
from ..config import QWEN25_7B, Recipe
from ..engine.prefill_batch import Prompt, pack_prompts
from ..plans.blocks import BLOCK
from ..plans.grids import ceil_div
from ..plans.machines import MACHINES
from .published_models import largest_batch

Sizes = tuple[tuple[int, int], ...]  # (tokens, cached tokens) of each prompt

TRAFFIC: dict[str, Sizes] = {
    "16 prompts of 104 tokens, 64 cached": ((104, 64),) * 16,
    "16 prompts of 104 tokens, none cached": ((104, 0),) * 16,
    "32 prompts, 8 each after 32, 64, 96 and 128 cached, 40 more": tuple(
        (40 + cached, cached) for cached in (32, 64, 96, 128) * 8
    ),
    "32 prompts of 1,050 tokens, 992 cached": ((1050, 992),) * 32,
    "16 prompts of 552 tokens, none cached": ((552, 0),) * 16,
    "1 of 1,100 tokens, 31 of 20, none cached": ((1100, 0),) + ((20, 0),) * 31,
    "1 of 1,100 tokens, 31 of 104, 64 of each cached": ((1100, 64),) + ((104, 64),) * 31,
}


def prompts_of(sizes: Sizes) -> list[Prompt]:
    """Prompts with blocks of their own."""
    prompts, first = [], 0
    for slot, (tokens, cached) in enumerate(sizes):
        own = range(first, first := first + ceil_div(tokens, BLOCK))
        prompts.append(Prompt(slot, range(tokens), cached, own))
    return prompts


def packing_table(recipe: Recipe) -> str:
    machines = [kind for kind in MACHINES.values() if kind.chips <= 8]
    largest = {kind: largest_batch(QWEN25_7B, recipe, kind, kind.row) for kind in machines}
    rows = []
    for name, sizes in TRAFFIC.items():
        cells = []
        for max_rows in largest.values():
            prompts = prompts_of(sizes)
            alone = [b for prompt in prompts for b in pack_prompts([prompt], max_rows, BLOCK)]
            for batches in (alone, pack_prompts(prompts, max_rows, BLOCK)):
                cells.append(f"{len(batches)} ({sum(batch.rows for batch in batches):,})")
        rows.append((name, *cells))
    header = "prompts"
    for kind, max_rows in largest.items():
        header += f"|{kind.name}, tp {kind.row}, up to {max_rows} rows: alone|{kind.name}: packed"
    title = (
        f"Qwen2.5-7B, recipe {recipe}: prefill batches, and all their rows, one prompt after the other and packed. "
        "A batch reads all weights once."
    )
    return f"{title}\n\n{markdown(header.split('|'), rows)}"
