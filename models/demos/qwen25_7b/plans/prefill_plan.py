"""A prefill pass as a value: up to 1024 rows through a layer with every activation in L1, and what lies there meanwhile.

Rows are tokens, of one prompt or of several side by side. The residual is block-sharded: columns of cores share out its
width, rows of cores the tokens. DRAM sees weights, caches, tables of positions and blocks, and nothing else.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Callable, Iterable, Iterator

import ttnn

from models.common.errors import UserError
from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.plans.blocks import MOST_KEYS
from models.demos.qwen25_7b.plans.gate_up_plan import GateUpPlan
from models.demos.qwen25_7b.plans.grids import TILE, TILE_BYTES, Grid, ceil_div, divisors
from models.demos.qwen25_7b.plans.l1 import Moment, interleaved, sharded
from models.demos.qwen25_7b.plans.memory_configs import block_sharded
from models.demos.qwen25_7b.plans.prefill_matmul import PrefillMatmul, prefill_matmuls

MOST_ROWS = 1024  # of a pass
# Tokens of k at a time where a pass goes on from the cache: as many as fit. The running sum of weights loses up to 2**-10 of
# itself with every chunk, as it goes through the multiplier: over 32768 tokens 4 % with chunks of 128, 1 % with 512.
KEYS = (MOST_KEYS, 256, 128, 64, TILE)


class PrefillDoesNotFit(UserError):
    """A model whose prefill no plan fits into a core's L1."""


@dataclass(frozen=True)
class PrefillPlan:
    rows: int  # a power of two, a tile or more
    cores: Grid  # that hold the residual
    banks: int  # cores over which interleaved tensors are dealt out
    hidden: int
    q_heads: int
    kv_heads: int
    head_dim: int
    chips: int
    qkv: PrefillMatmul
    o: PrefillMatmul
    gate_up: PrefillMatmul  # gate and up alike, or the one matmul that they are
    down: PrefillMatmul
    joined: bool  # gate and up are one matmul
    keys: int = TILE  # tokens of k at a time where a pass goes on from the cache

    @property
    def chunk(self) -> int:
        """Tokens of q and of k at a time."""
        return attention_chunk(self.rows)

    @property
    def residual_memory(self) -> ttnn.MemoryConfig:
        """[1, 1, rows, hidden]"""
        return block_sharded(self.rows, self.hidden // self.cores.x, self.cores)

    @property
    def heads_memory(self) -> ttnn.MemoryConfig:
        """[1, 1, rows, q_heads * head_dim]: attention's result, as O reads it."""
        if not self.o.in_sharded:
            return ttnn.L1_MEMORY_CONFIG
        return block_sharded(self.rows, self.q_heads * self.head_dim // self.cores.x, self.cores)

    @property
    def wide_memory(self) -> ttnn.MemoryConfig:
        """[1, 1, rows, mlp]: gate, up and their product; joined: [gate | up], interleaved so that it can be cut."""
        if not self.gate_up.out_sharded:
            return ttnn.L1_MEMORY_CONFIG
        return block_sharded(self.rows, self.gate_up.per_core_n * TILE, self.cores)

    @property
    def summand_memory(self) -> ttnn.MemoryConfig:
        """[1, 1, rows, hidden]: what O and down give, one summand a chip."""
        return self.residual_memory if self.o.out_sharded else ttnn.L1_MEMORY_CONFIG

    @property
    def scattered_memory(self) -> ttnn.MemoryConfig:
        """[1, 1, rows, hidden / chips]: a chip's columns of the sum."""
        if not self.o.out_sharded:
            return ttnn.L1_MEMORY_CONFIG
        return block_sharded(self.rows, self.hidden // self.cores.x // self.chips, self.cores)

    def norm_program(self) -> ttnn.LayerNormShardedMultiCoreProgramConfig:
        width = self.hidden // TILE // self.cores.x
        return ttnn.LayerNormShardedMultiCoreProgramConfig(
            compute_with_storage_grid_size=(self.cores.x, self.cores.y),
            subblock_w=max(w for w in (1, 2, 3, 4) if width % w == 0),  # dest holds 4 tiles with fp32 accumulation
            block_h=self.rows // TILE // self.cores.y,
            block_w=width,
            inplace=False,
        )

    def attention_program(self, grid: Grid) -> ttnn.SDPAProgramConfig:
        """For whole prompts."""
        return self._attention_program(grid, self.chunk)

    def continued_program(self, grid: Grid) -> ttnn.SDPAProgramConfig:
        """For a pass that goes on from the cache."""
        return self._attention_program(grid, self.keys)

    def _attention_program(self, grid: Grid, keys: int) -> ttnn.SDPAProgramConfig:
        return ttnn.SDPAProgramConfig(
            compute_with_storage_grid_size=(grid.x, grid.y),
            q_chunk_size=self.chunk,
            k_chunk_size=keys,
            exp_approx_mode=False,
        )

    # ---- what lies in L1

    def moments(self, kv_format: str) -> Iterator[Moment]:
        """A layer, op by op. kv_format: the cache's; one of 8 bits takes copies of k and v."""
        rows, cores = self.rows, self.cores
        height = rows // cores.y
        h = ("residual", sharded(height, self.hidden // cores.x))
        tables = ("cos and sin", 2 * self._spread(self.head_dim))
        x = ("normed", h[1])
        qkv = ("qkv", self._spread((self.q_heads + 2 * self.kv_heads) * self.head_dim))
        q = ("q", self._spread(self.q_heads * self.head_dim))
        k, v = ((name, self._spread(self.kv_heads * self.head_dim)) for name in "kv")
        stored = [("k in 8 bits", self._spread(self.kv_heads * self.head_dim, kv_format))] * (kv_format != "bfloat16")
        attended = self._shard_or_spread("attention", self.o.in_sharded, self.q_heads * self.head_dim)
        summand = self._shard_or_spread("summand", self.o.out_sharded, self.hidden)
        part = self._shard_or_spread("sum, a part", self.o.out_sharded, self.hidden // self.chips)
        wide = [(name, self._wide()) for name in (("gate and up",) if self.joined else ("gate", "up"))]

        def moment(op: str, buffers: int, *tensors: tuple[str, int]) -> Moment:
            return Moment(op, (tables, *tensors), buffers)

        yield moment("norm", self._norm_buffers(), h, x)
        yield moment("qkv", self.qkv.buffers, h, x, qkv)
        yield moment("heads", 0, h, qkv, q, k, v)
        yield moment("rotary", 25_088 * ceil_div(self.head_dim, TILE), h, q, ("q rotated", q[1]), k, v)
        yield moment("cache", 0, h, q, k, v, *stored)
        yield moment("attention", self._attention_buffers(self.chunk, "bfloat16"), h, q, k, v, attended)
        heads = ("attention, head by head", q[1])
        yield moment("attention to the cache", self._attention_buffers(self.keys, kv_format), h, q, heads)
        concat = 2 * ceil_div(self.q_heads * self.head_dim, TILE) * TILE_BYTES["bfloat16"]
        yield moment("heads side by side", concat, h, heads, ("attention", q[1]))
        yield moment("o", self.o.buffers, h, ("attention", max(attended[1], q[1])), summand)
        yield from self._sums(moment, h, summand, part)
        yield moment("norm", self._norm_buffers(), h, x)
        yield moment("gate", self.gate_up.buffers, h, x, wide[0])
        if self.joined:
            halves = [(name, self._spread(self.down.k_tiles * TILE)) for name in ("gate", "up")]
            yield moment("cut", 0, h, *wide, *halves)
            wide = halves
        else:
            yield moment("up", self.gate_up.buffers, h, x, *wide)
        yield moment("product", (7 if self.joined else 2) * TILE_BYTES["bfloat16"], h, *wide)
        yield moment("down", self.down.buffers, h, ("product", wide[0][1]), summand)
        yield from self._sums(moment, h, summand, part)

    def _sums(self, moment: Callable, h, summand, part) -> Iterator[Moment]:
        if self.chips > 1:
            yield moment("reduce-scatter", 196_608, h, summand, ("its buffer", summand[1]), part)
            yield moment("all-gather", 12_288, h, part, ("sum", h[1]))
        yield moment("add", 0, h, ("sum", h[1]), ("new residual", h[1]))

    def _spread(self, columns: int, format: str = "bfloat16") -> int:
        return interleaved(self.rows, columns, format, self.banks)

    def _shard_or_spread(self, name: str, is_sharded: bool, columns: int) -> tuple[str, int]:
        if not is_sharded:
            return name, self._spread(columns)
        return name, sharded(self.rows // self.cores.y, columns // self.cores.x)

    def _wide(self) -> int:
        if self.gate_up.out_sharded:
            return sharded(self.rows // self.cores.y, self.gate_up.per_core_n * TILE)
        return self._spread(self.gate_up.n_tiles * TILE)

    def _norm_buffers(self) -> int:
        """Measured on a mock over blocks of 1 to 4 tiles by 1 to 20."""
        height, width = self.rows // TILE // self.cores.y, self.hidden // TILE // self.cores.x
        return 8_192 * height * width + 12_288 * height + 2_048 * width + 45_056

    def _attention_buffers(self, keys: int, kv_format: str) -> int:
        """Two chunks of q, k and v, scores and a mask, two float32 results: as measured on a mock, to some bytes."""
        chunk, keys, dim = self.chunk // TILE, keys // TILE, ceil_div(self.head_dim, TILE)
        scores = chunk * keys * (TILE_BYTES["float32"] + TILE_BYTES["bfloat16"])
        return 4 * keys * dim * TILE_BYTES[kv_format] + scores + chunk * (dim * 12_288 + 6_144) + 20_000


def attention_chunk(rows: int) -> int:
    """Tokens of q and of k that a core attends to at a time in a pass of `rows` rows: where a text goes on that a cache holds
    the beginning of, the pass must begin at a multiple. Short passes take a tile, so that they need not begin far back; long
    ones four, so that keys are read less often."""
    return 128 if rows >= 128 else TILE


@lru_cache(maxsize=None)
def plan_prefill(
    config: QwenConfig, plan: ParallelPlan, recipe: Recipe, grid: Grid, rows: int, room: int
) -> PrefillPlan:
    """The plan for a pass of `rows` rows. room: bytes of a core's L1 beside what stays there (DecodePlan.l1_room).

    PrefillDoesNotFit, naming op and bytes, where there is none.
    """
    row_tiles, hidden = rows // TILE, config.hidden_size // TILE
    head = config.head_dim
    q, qkv = plan.q_width(head) // TILE, plan.qkv_width(head) // TILE
    product = GateUpPlan.make(config, plan, recipe)
    wide = product.weights()[0]
    down_rows = max(d for d in divisors(row_tiles) if d <= grid.y)
    across = next(x for x in sorted(divisors(hidden), reverse=True) if x <= grid.x and fills(x, (qkv, hidden, wide)))
    cores = Grid(across, down_rows)
    sums_sharded = plan.tp == 1 or hidden // across % plan.tp == 0
    heads_sharded = q % across == 0 and head % TILE == 0

    def matmuls(k, n, format, **where) -> list[PrefillMatmul]:
        return list(prefill_matmuls(row_tiles, k, n, cores, format, **where))

    choices = [
        matmuls(hidden, qkv, recipe.attention.format, in_shard=hidden // across, out_sharded=False, bias=True),
        matmuls(
            q,
            hidden,
            recipe.attention.format,
            in_shard=q // across if heads_sharded else None,
            out_sharded=sums_sharded,
        ),
        matmuls(hidden, wide, recipe.mlp_in.format, in_shard=hidden // across, out_sharded=not product.joined),
    ]

    def whole(qkv_plan, o_plan, gate_up, down) -> PrefillPlan:
        return PrefillPlan(
            rows, cores, grid.cores, config.hidden_size, plan.q_heads, plan.kv_heads, head, plan.tp,
            qkv_plan, o_plan, gate_up, down, product.joined,
        )  # fmt: skip

    def downs(gate_up: PrefillMatmul) -> list[PrefillMatmul]:
        shard = None if product.joined else gate_up.per_core_n
        return matmuls(product.tiles, hidden, recipe.mlp_out.format, in_shard=shard, out_sharded=sums_sharded)

    def fitting(ops: tuple[str, ...], candidates: Iterable[PrefillPlan]) -> PrefillPlan:
        """The first whose moments called `ops` fit."""
        least = None
        for candidate in candidates:
            worst = max((m for m in candidate.moments(recipe.kv_cache) if m.op in ops), key=lambda m: m.bytes)
            if worst.bytes <= room:
                return candidate
            least = min(least or worst, worst, key=lambda m: m.bytes)
        raise PrefillDoesNotFit(
            f"prefill of {rows} rows with tp {plan.tp}: {least.op} takes {least.bytes:,} bytes of a core's L1, {room:,} are "
            "there: use more chips a replica (tp)"
        )

    first = [options[0] for options in choices]
    chosen = fitting(("qkv",), (whole(p, *first[1:], downs(first[2])[0]) for p in choices[0]))
    chosen = fitting(("o",), (whole(chosen.qkv, p, first[2], chosen.down) for p in choices[1]))
    pairs = (whole(chosen.qkv, chosen.o, wide_plan, d) for wide_plan in choices[2] for d in downs(wide_plan))
    chosen = fitting(("gate", "up", "cut", "product", "down"), pairs)
    chosen = fitting(("attention to the cache",), (replace(chosen, keys=keys) for keys in KEYS))
    return fitting(tuple({m.op for m in chosen.moments(recipe.kv_cache)}), (chosen,))


def layer_plans(
    config: QwenConfig, plan: ParallelPlan, recipe: Recipe, grid: Grid, rows: int, room: int
) -> list[PrefillPlan]:
    """plan_prefill for each layer by its own recipe."""
    recipes = [recipe.of_layer(i) for i in range(config.num_hidden_layers)]
    plans = [plan_prefill(config, plan, of_layer, grid, rows, room) for of_layer in recipes]
    for i, of_layer in enumerate(plans):
        if of_layer.cores != plans[0].cores:
            raise PrefillDoesNotFit(
                f"recipe {recipes[i].name} of layer {i} wants the residual on {of_layer.cores}, layer 0 on {plans[0].cores}: "
                "keep gate and up of all layers in one format"
            )
    return plans


def fills(across: int, widths: tuple[int, ...]) -> bool:
    """Whether every one of `across` columns of cores has a part of each of these widths in tiles."""
    return all(ceil_div(n, ceil_div(n, across)) == across for n in widths)


@lru_cache(maxsize=None)
def largest_pass(config: QwenConfig, plan: ParallelPlan, recipe: Recipe, grid: Grid, room: int) -> int:
    """Rows of the longest pass that fits: weights are read once a pass. PrefillDoesNotFit if not even a tile does."""
    rows = MOST_ROWS
    while True:
        try:
            layer_plans(config, plan, recipe, grid, rows, room)
            return rows
        except PrefillDoesNotFit:
            if rows == TILE:
                raise
            rows //= 2
