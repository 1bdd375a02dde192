"""Prefill batches of several prompts: counted and modeled, beside one prompt after the other. No device."""

from models.common.markdown import markdown
from models.common.machines import MACHINES, MachineKind
from models.demos.qwen25_7b.config import MAX_USERS, QWEN25_7B, ParallelPlan, Recipe
from models.demos.qwen25_7b.plans.blocks import BLOCK
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
from models.demos.qwen25_7b.plans.grids import ceil_div
from models.demos.qwen25_7b.plans.prefill_prices import PrefillPrices
from models.demos.qwen25_7b.plans.smallest_split import GRID
from models.demos.qwen25_7b.serving.prefill_batch import Prompt
from models.demos.qwen25_7b.serving.prefill_packing import plan_prefill, seconds_of

Sizes = tuple[tuple[int, int], ...]  # (tokens, cached tokens) of each prompt

TRAFFIC: dict[str, Sizes] = {
    "16 prompts of 104 tokens, 64 cached": ((104, 64),) * 16,
    "16 prompts of 104 tokens, none cached": ((104, 0),) * 16,
    "32 prompts, 8 each behind 32, 64, 96 and 128 cached, 40 more": tuple(
        (40 + cached, cached) for cached in (32, 64, 96, 128) * 8
    ),
    "32 prompts of 1,050 tokens, 992 cached": ((1050, 992),) * 32,
    "1 of 1,100 tokens, 31 of 20, none cached": ((1100, 0),) + ((20, 0),) * 31,
    "1 of 1,100 tokens, 31 of 104, 64 of each cached": ((1100, 64),) + ((104, 64),) * 31,
}


def prefill_prices(recipe: Recipe, kind: MachineKind) -> PrefillPrices:
    """Of the 7B, with a row of a machine's chips as a replica."""
    plan = ParallelPlan.make(QWEN25_7B, kind.row)
    topology = "ring" if kind.is_ring(kind.row) else "line"
    decode = DecodePlan.make(
        QWEN25_7B, plan, GRID, MAX_USERS, topology=topology, partial_sums=recipe.all_reduce_dtype
    )
    return PrefillPrices.make(QWEN25_7B, plan, recipe, decode, kind.links)


def prompts_of(sizes: Sizes, block: int = BLOCK) -> list[Prompt]:
    """Prompts with blocks of their own."""
    prompts, first = [], 0
    for slot, (tokens, cached) in enumerate(sizes):
        own = range(first, first := first + ceil_div(tokens, block))
        prompts.append(Prompt(slot, range(tokens), cached, own))
    return prompts


def packing_table(recipe: Recipe) -> str:
    machines = [kind for kind in MACHINES.values() if kind.chips <= 8]
    rows = []
    for name, sizes in TRAFFIC.items():
        cells = []
        for kind in machines:
            prices, prompts = prefill_prices(recipe, kind), prompts_of(sizes)
            alone = [b for prompt in prompts for b in plan_prefill([prompt], prices, BLOCK)]
            for batches in (alone, plan_prefill(prompts, prices, BLOCK)):
                seconds = sum(seconds_of(batch, prices) for batch in batches)
                cells.append(f"{len(batches)}, {1e3 * seconds:,.0f} ms")
        rows.append((name, *cells))
    header = "prompts"
    for kind in machines:
        header += f"|{kind.name}, tp {kind.row}: alone|{kind.name}: packed"
    title = (
        f"Qwen2.5-7B, recipe {recipe}: prefill batches and their time, one prompt after the other and packed. "
        "Batches counted, times modeled, not measured."
    )
    return f"{title}\n\n{markdown(header.split('|'), rows)}"
