"""The modeled time of a prefill batch, from its plan. Packing compares batches by it. Pure functions.

The formulas and rates are those of golden_mesh.perf, which prices captured operations and which the program does not
import. A test holds both together (tests/perf/test_prefill_prices.py).
"""

from dataclasses import dataclass
from typing import NamedTuple

from models.demos.qwen25_7b.config import ParallelPlan, QwenConfig, Recipe
from models.demos.qwen25_7b.config.recipe import FIDELITY, Fidelity, Group
from models.demos.qwen25_7b.plans.all_reduce_plan import Topology
from models.demos.qwen25_7b.plans.decode_plan import DecodePlan, lm_head_shards, streamed_tiles
from models.demos.qwen25_7b.plans.grids import TILE, TILE_BYTES, ceil_div
from models.demos.qwen25_7b.plans.planner import max_prefill_rows, plan_prefill_layers
from models.demos.qwen25_7b.plans.prefill_plan import PrefillMatmul, PrefillPlan, q_chunk_size

LAUNCH = 3.8e-6  # seconds of a device operation
STREAMED = 249.5e9  # bytes a second of weights, which lie in all DRAM banks
SCATTERED = 136.7e9  # bytes a second of interleaved tensors in DRAM
UNPACK = 102.0  # bytes a cycle at which a core unpacks the operands of a matmul
CYCLES: dict[Fidelity, int] = {"LoFi": 16, "HiFi2": 32, "HiFi3": 48}  # of a core, for two tiles
ATTENTION_CYCLES = 64
CLOCK = 1e9  # Hz
CENTERING = 2  # operations of centered keys in a layer; counted whether or not the layer's K bias has outliers
OPERATIONS = 16  # of a layer on one chip: whole prompts, a bfloat16 cache, gate and up apart


class ExchangePrice(NamedTuple):
    """Seconds of a reduce-scatter and an all-gather together, by the bytes of the partial sum and of the sum."""

    once: float
    scattered_byte: float
    gathered_byte: float


# Lines through the measured times (golden_mesh.perf.collective_prices) of tensors of 256 KiB and more.
EXCHANGES: dict[tuple[int, Topology], ExchangePrice] = {
    (2, "line"): ExchangePrice(17e-6, 57e-12, 79e-12),
    (4, "line"): ExchangePrice(31e-6, 74e-12, 64e-12),
    (8, "line"): ExchangePrice(60e-6, 81e-12, 75e-12),
    (8, "ring"): ExchangePrice(56e-6, 53e-12, 43e-12),
}


@dataclass(frozen=True)
class PrefillPrices:
    """Modeled seconds of prefill batches of one model on one split.

    fixed: for each size of a batch (prefill_sizes), all but attention. operations: of a batch of chunks on the device.
    """

    max_rows: int
    layers: int
    operations: int
    q_heads: int  # of a chip
    head_dim: int
    key_tile_bytes: int  # of the cache
    cores: int
    fixed: tuple[float, ...]

    @classmethod
    def make(
        cls,
        config: QwenConfig,
        plan: ParallelPlan,
        recipe: Recipe,
        decode: DecodePlan,
        links: int = 1,
    ) -> "PrefillPrices":
        """links: ethernet links between neighboring chips."""
        how = config, plan, recipe, decode.grid
        largest = max_prefill_rows(*how, decode.l1_room)
        fixed = []
        for rows in prefill_sizes(largest):
            plans = plan_prefill_layers(*how, rows, decode.l1_room)
            layers = (
                _layer_seconds(of_layer, recipe.of_layer(i), decode, links)
                for i, of_layer in enumerate(plans)
            )
            keys = len(config.centered_layers) * _centering_seconds(plan, config.head_dim, rows)
            fixed.append(sum(layers) + keys + _around_seconds(config, plan, recipe, rows))
        operations = CENTERING * len(config.centered_layers) + _operations_around(plan, recipe)
        operations += sum(
            _layer_operations(of_layer, recipe.of_layer(i)) + 1  # heads are concatenated
            for i, of_layer in enumerate(plans)
        )
        return cls(
            largest,
            config.num_hidden_layers,
            operations,
            plan.q_heads,
            config.head_dim,
            TILE_BYTES[recipe.kv_cache],
            decode.grid.cores,
            tuple(fixed),
        )

    def whole(self, rows: int) -> float:
        """Seconds of a batch of whole prompts side by side. Attention goes over all rows before a row."""
        keys = _keys_read(rows, 0)
        return self._fixed(rows) + self.layers * self._multiplied(keys * q_chunk_size(rows))

    def chunked(self, rows: int, sequences: int, start: int) -> float:
        """Seconds of a batch of chunks behind `start` cached tokens. The keys are read from DRAM for every head."""
        rows_each = rows // sequences
        keys = sequences * _keys_read(rows_each, start)
        tiles = 2 * self.q_heads * keys // TILE * ceil_div(self.head_dim, TILE)
        read = tiles * self.key_tile_bytes / SCATTERED
        attention = max(read, self._multiplied(keys * q_chunk_size(rows_each)))
        return self._fixed(rows) + self.layers * (attention + LAUNCH)  # heads are concatenated

    def _fixed(self, rows: int) -> float:
        return self.fixed[(rows // TILE).bit_length() - 1]

    def _multiplied(self, pairs: int) -> float:
        """pairs: of a token and a key, in each query head. Scores and values are two products."""
        products = 2 * self.q_heads * pairs * self.head_dim / TILE**3
        return products * ATTENTION_CYCLES / (CLOCK * self.cores)


def prefill_sizes(max_rows: int) -> list[int]:
    """Return the numbers of rows that a batch may have: powers of two from 32 to max_rows."""
    return [TILE << i for i in range((max_rows // TILE).bit_length())]


def _keys_read(rows: int, start: int) -> int:
    """Keys that attention reads for `rows` rows of one head. Every chunk of q reads all keys before its end."""
    chunk = q_chunk_size(rows)
    chunks = ceil_div(rows, chunk)
    return chunk * chunks * (chunks + 1) // 2 + chunks * start


def _layer_seconds(plan: PrefillPlan, recipe: Recipe, decode: DecodePlan, links: int) -> float:
    """A layer without the time of attention itself."""
    matmuls = [
        (plan.qkv, recipe.attention),
        (plan.o, recipe.attention),
        (plan.gate_up, recipe.mlp_in),
        (plan.down, recipe.mlp_out),
    ]
    if not plan.joined:
        matmuls.append((plan.gate_up, recipe.mlp_in))
    seconds = sum(_matmul_seconds(plan.rows, *matmul) for matmul in matmuls)
    if plan.chips > 1:
        price = EXCHANGES[plan.chips, decode.all_reduce.topology]
        tiles = plan.rows * plan.hidden / TILE**2 / links
        scattered = tiles * TILE_BYTES["bfloat16"] * price.scattered_byte
        gathered = tiles * TILE_BYTES[plan.gathered] * price.gathered_byte
        seconds += 2 * (price.once + scattered + gathered)
    return seconds + _layer_operations(plan, recipe) * LAUNCH


def _centering_seconds(plan: ParallelPlan, head_dim: int, rows: int) -> float:
    """The look-up of a row for each key of the batch, and the addition."""
    return CENTERING * LAUNCH + rows * plan.kv_heads * head_dim * 2 / SCATTERED


def _layer_operations(plan: PrefillPlan, recipe: Recipe) -> int:
    """Device operations of a layer in a batch of whole prompts."""
    rounds_kv = 2 * (recipe.kv_cache != "bfloat16")
    rounds_sums = 2 * (plan.gathered != "bfloat16")
    exchanges = 4 if plan.chips > 1 else 0
    return OPERATIONS + plan.joined + rounds_kv + rounds_sums + exchanges


def _matmul_seconds(rows: int, matmul: PrefillMatmul, group: Group) -> float:
    """The weight is read before it is multiplied."""
    read = matmul.k_tiles * streamed_tiles(matmul.n_tiles) * TILE_BYTES[group.format] / STREAMED
    operands = TILE_BYTES["bfloat16"] + TILE_BYTES[group.format]
    cycles = max(CYCLES[group.fidelity or FIDELITY[group.format]], operands / UNPACK)
    products = rows // TILE * matmul.k_tiles * matmul.n_tiles / matmul.grid.cores
    return read + products * cycles / CLOCK


def _around_seconds(config: QwenConfig, plan: ParallelPlan, recipe: Recipe, rows: int) -> float:
    """Embedding, LM head and sampling of a batch in which a prompt ends."""
    looked_up = 2 * rows * (config.hidden_size + 2 * config.head_dim) / SCATTERED
    shards = lm_head_shards(plan.vocab, recipe.lm_head.format)
    tiles = sum(streamed_tiles(columns // TILE) for _, columns in shards)
    bytes_ = config.hidden_size // TILE * tiles * TILE_BYTES[recipe.lm_head.format]
    return looked_up + bytes_ / STREAMED + _operations_around(plan, recipe) * LAUNCH


def _operations_around(plan: ParallelPlan, recipe: Recipe) -> int:
    """Device operations of a batch outside of the layers; several chips gather candidates to sample."""
    shards = lm_head_shards(plan.vocab, recipe.lm_head.format)
    return (28 if plan.tp > 1 else 24) + 4 * len(shards)
