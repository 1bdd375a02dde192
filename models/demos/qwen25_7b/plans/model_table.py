"""What a model is on a row of chips, listed once.

A row is a weight with its format and slices; a projection also has the cores of its decode matmul. Modules take their
rows. The packer, MemoryBudget, the L1 sums and perf read the same rows.
"""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import Optional

from ..config import DecoderConfig, Group, Recipe
from . import transforms
from .chip import Chip
from .decode_plan import HALF_CORES, DecodeMatmul, gate_up_tiles, lm_head_shards
from .grids import TILE, TILE_BYTES, ceil_div, most_even
from .parallel_plan import ParallelPlan
from .slices import HeadNorm, WeightShard, WeightSlice, WholeTensor


@dataclass(frozen=True)
class Weight:
    """A weight on a row of chips. A single slice is on every chip."""

    slices: tuple[WeightSlice, ...]  # slices[c] is chip c's; all have one shape
    format: str = "bfloat16"
    tiled: bool = True

    def __post_init__(self):
        shapes = {weight_slice.shape for weight_slice in self.slices}
        assert len(shapes) == 1, "chips run one program: their slices have one shape"

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns) of one chip's slice."""
        return self.slices[0].shape

    @property
    def shards(self) -> list[WeightShard]:
        return [WeightShard(weight_slice, self.format, self.tiled) for weight_slice in self.slices]


@dataclass(frozen=True)
class LinearSpec:
    """A projection: y = x @ weight (+ bias), each chip with its shard of the weight."""

    name: str
    weight: Weight  # [in, out] a chip
    group: Group  # its format and fidelity
    in_cores: int  # that hold x in decode
    out_cores: int  # the most that may hold y in decode
    chip: Chip
    bias: Optional[Weight] = None  # [1, out]
    head_width: int = 0  # columns that must lie on one core; 0 for none
    decode_only: bool = False  # prefill multiplies by it, too, unless it is the LM head

    @cached_property
    def decode_matmul(self) -> DecodeMatmul:
        """UserError if no plan fits a core's L1."""
        k, n = (ceil_div(extent, TILE) for extent in self.weight.shape)
        cores = dict(out_cores=self.out_cores, divides=self.head_width // TILE)
        return DecodeMatmul.make(k, n, self.in_cores, self.group.format, self.chip, **cores)

    @property
    def streamed_bytes(self) -> int:
        """Bytes of the weight that a step reads, with what fills up the DRAM banks."""
        return self._streamed(self.weight.shape[0], self.group.format)

    @property
    def bias_bytes(self) -> int:
        return self._streamed(1, self.bias.format) if self.bias else 0

    @property
    def prefill_copy(self) -> bool:
        """Whether prefill has an interleaved copy of the weight. Its columns are the model's: none can be added so that
        decode's banks serve prefill, as gate_up_tiles does."""
        return not (self.decode_only or self.decode_matmul.serves_prefill)

    @property
    def copy_bytes(self) -> int:
        """Bytes of prefill's copy."""
        return self.prefill_copy * sum(shard.bytes for shard in self.weight.shards[:1])

    def _streamed(self, rows: int, format: str) -> int:
        return ceil_div(rows, TILE) * self.decode_matmul.bank_shard * self.chip.banks * TILE_BYTES[format]


@dataclass(frozen=True, eq=False)
class LayerSpec:
    """One decoder layer; shapes are one chip's."""

    dims: DecoderConfig
    parallel: ParallelPlan
    recipe: Recipe  # the layer's
    chip: Chip
    input_norm: Weight  # [hidden / 32, 32], on every chip
    qkv: LinearSpec  # [hidden, (q_heads + 2 * kv_heads) * head_dim]
    head_norms: tuple[Weight, ...]  # q's and k's, [head_dim / 32, 32] on every chip; or none
    # [1, kv_heads * head_dim]: the part of K's bias that centered keys leave out of qkv.bias; only of
    # dims.centered_layers
    centered_bias: Optional[Weight]
    o: LinearSpec  # [q_heads * head_dim, hidden]
    post_attention_norm: Weight  # [hidden / 32, 32], on every chip
    gate_up: tuple[LinearSpec, ...]  # gate and up, [hidden, mlp] each, or one [hidden, 2 * mlp]: gate_up_tiles
    down: LinearSpec  # [mlp, hidden]

    @property
    def joined(self) -> bool:
        """Whether gate and up are one matmul."""
        return len(self.gate_up) == 1

    @property
    def linears(self) -> tuple[LinearSpec, ...]:
        return self.qkv, self.o, *self.gate_up, self.down

    @property
    def norms(self) -> tuple[Weight, ...]:
        return self.input_norm, *self.head_norms, self.post_attention_norm

    @property
    def weights(self) -> tuple[Weight, ...]:
        """All weights, in the order in which the modules read them."""
        qkv, o, *mlp = ((linear.weight, linear.bias) for linear in self.linears)
        attention = self.input_norm, *qkv, *self.head_norms, self.centered_bias, *o
        return tuple(filter(None, (*attention, self.post_attention_norm, *chain(*mlp))))


@dataclass(frozen=True)
class ModelTable:
    """A model on a row of chips. UserError: the recipe has layers that the model has not."""

    dims: DecoderConfig
    parallel: ParallelPlan
    recipe: Recipe
    chip: Chip

    def __post_init__(self):
        self.recipe.check_layers(self.dims.num_hidden_layers)

    def layer(self, i: int) -> LayerSpec:
        return _layer(self.dims, self.parallel, self.recipe.of_layer(i), self.chip, i)

    @cached_property
    def kinds(self) -> list[tuple[LayerSpec, int]]:
        """The first layer of each recipe, and how many layers follow that recipe."""
        recipes = [self.recipe.of_layer(i) for i in range(self.dims.num_hidden_layers)]
        return [(self.layer(recipes.index(recipe)), times) for recipe, times in Counter(recipes).items()]

    @property
    def embedding(self) -> Weight:
        """[vocab_size, hidden], on every chip; row-major, so that a row is one read."""
        vocab, hidden = self.dims.vocab_size, self.dims.hidden_size
        return Weight((WholeTensor("model.embed_tokens.weight", (vocab, hidden), hidden),), tiled=False)

    @property
    def final_norm(self) -> Weight:
        return _norm("model.norm.weight", self.dims)

    @cached_property
    def logits_shards(self) -> list[tuple[int, int]]:
        """(first column, columns) of each shard of a chip's logits: the LM head is one matmul a shard."""
        return lm_head_shards(self.parallel.vocab, self.recipe.lm_head.format, self.chip)

    @cached_property
    def lm_head(self) -> tuple[LinearSpec, ...]:
        """[hidden, columns] of each shard. A bias gives columns past the vocabulary PADDING_LOGIT."""
        of_model, group = (self.dims, self.parallel), self.recipe.lm_head
        pads = self.parallel.tp * self.parallel.vocab > self.dims.vocab_size
        widest = max(columns for _, columns in self.logits_shards)
        return tuple(
            LinearSpec(
                f"LM head{', the rest' * (shard[1] < widest)}",
                Weight(transforms.lm_head_weights(*of_model, *shard), group.format),
                group,
                in_cores=self.layer(0).qkv.in_cores,
                out_cores=self.chip.matmul_cores,
                chip=self.chip,
                bias=Weight(transforms.lm_head_biases(*of_model, *shard)) if pads else None,
                decode_only=True,
            )
            for shard in self.logits_shards
        )

    @cached_property
    def step(self) -> list[tuple[LinearSpec, int]]:
        """The projections of a decode step, and how often each runs: layers of a recipe together, then the LM head."""
        layers = [(linear, times) for layer, times in self.kinds for linear in layer.linears]
        heads = {linear.name: linear for linear in self.lm_head}
        times = Counter(linear.name for linear in self.lm_head)
        return layers + [(linear, times[name]) for name, linear in heads.items()]

    @property
    def decode_matmuls(self) -> dict[str, DecodeMatmul]:
        """The plans of a step's matmuls by name; of equal names the last."""
        return {linear.name: linear.decode_matmul for linear, _ in self.step}

    @property
    def shards(self) -> list[WeightShard]:
        """All shards that a model reads, each once. Shards of padding alone take no time to build and are left out."""
        layers = (weight for i in range(self.dims.num_hidden_layers) for weight in self.layer(i).weights)
        # The bias of an LM head is padding alone.
        weights = (self.embedding, *layers, self.final_norm, *(linear.weight for linear in self.lm_head))
        return list(dict.fromkeys(s for weight in weights for s in weight.shards if s.slice.tensors))


@lru_cache(maxsize=None)
def _layer(config: DecoderConfig, parallel: ParallelPlan, recipe: Recipe, chip: Chip, i: int) -> LayerSpec:
    prefix, rope = f"model.layers.{i}.", config.centering_rope(i)
    of_model = prefix, config, parallel
    hidden, cores = config.hidden_size, chip.matmul_cores
    residual = chip.grid.residual(hidden // TILE, parallel.tp).cores
    tiles, joined = gate_up_tiles(config, parallel, recipe, chip)

    def mlp(group: Group, in_cores: int, out_cores: int, *names: str) -> LinearSpec:
        # Zero columns and rows that fill up a chip's shard add nothing: silu(0) * 0 meets zero rows of down.
        weight = Weight(transforms.mlp_weights(prefix, names, config, parallel, tiles * TILE), group.format)
        return LinearSpec(" + ".join(names), weight, group, in_cores, out_cores, chip)

    parts = ((("gate", "up"), 2 * HALF_CORES),) if joined else ((("gate",), cores), (("up",), cores))
    q_norm, k_norm = (f"{prefix}self_attn.{name}_norm.weight" for name in "qk")
    return LayerSpec(
        config,
        parallel,
        recipe,
        chip,
        input_norm=_norm(f"{prefix}input_layernorm.weight", config),
        qkv=LinearSpec(
            "QKV",
            Weight(transforms.qkv_slices("weight", *of_model, rope), recipe.attention.format),
            recipe.attention,
            in_cores=residual,
            out_cores=cores,
            chip=chip,
            bias=Weight(transforms.qkv_slices("bias", *of_model, rope)) if config.qkv_bias else None,
            head_width=config.head_width,
        ),
        head_norms=tuple(
            Weight((HeadNorm(norm, (config.head_dim,), TILE, k_norm),), tiled=False)
            for norm in (q_norm, k_norm)[: 2 * config.head_norms]
        ),
        centered_bias=rope and Weight(transforms.centered_biases(*of_model, rope), tiled=False),
        o=LinearSpec(
            "O",
            Weight(transforms.o_weights(*of_model), recipe.attention.format),
            recipe.attention,
            in_cores=parallel.q_heads,  # nlp_concat_heads_decode lays one head onto a core
            out_cores=residual,
            chip=chip,
            bias=Weight(transforms.o_biases(*of_model)) if config.o_bias else None,
        ),
        post_attention_norm=_norm(f"{prefix}post_attention_layernorm.weight", config),
        gate_up=tuple(mlp(recipe.mlp_in, residual, out_cores, *names) for names, out_cores in parts),
        down=mlp(recipe.mlp_out, most_even(tiles, cores), residual, "down"),
    )


def _norm(name: str, config: DecoderConfig) -> Weight:
    """[hidden / 32, 32]: rms_norm reads its weight as rows of a tile."""
    return Weight((WholeTensor(name, (config.hidden_size,), TILE),), tiled=False)
