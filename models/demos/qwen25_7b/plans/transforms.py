"""Each chip's slice of every weight: the tensor-parallel arithmetic that ParallelPlan leaves to the weights.

A result has one slice a chip, in the order of the chips. `layer` is a layer's prefix, such as "model.layers.3.".
"""

from typing import Iterable, Iterator, Literal, Optional

from ..config import DecoderConfig
from ..config.rope import Rope
from .parallel_plan import ParallelPlan
from .slices import Constant, KeyScaling, Projection, TensorRange

Slices = tuple[Projection, ...]


def qkv_slices(
    kind: Literal["weight", "bias"],
    layer: str,
    config: DecoderConfig,
    parallel: ParallelPlan,
    rope: Optional[Rope] = None,
) -> Slices:
    """A chip's [queries | keys | values], q and k in rotary pairs.

    kind: weights [hidden, (q_heads + 2 * kv_heads) * head_dim], or biases [1, (q_heads + 2 * kv_heads) * head_dim], of
    which centered pairs of keys have zeros.
    rope: of a layer whose keys may be centered (rotary_pairs.py).
    """
    size, other = config.head_dim, config.hidden_size if kind == "weight" else 1
    q, k, v = (f"{layer}self_attn.{name}_proj.{kind}" for name in "qkv")
    k_bias = f"{layer}self_attn.k_proj.bias" if config.qkv_bias else None
    group = config.num_attention_heads // config.num_key_value_heads

    def query(h: int) -> TensorRange:
        scaling = k_bias and KeyScaling(k_bias, h // group * size, queries=True, rope=rope)
        return TensorRange(q, h * size, size, pairs=True, scaling=scaling)

    def key(h: int) -> TensorRange:
        part = "plain" if kind == "bias" and rope else None
        scaling = k_bias and KeyScaling(k_bias, h * size, rope=rope, part=part)
        return TensorRange(k, h * size, size, pairs=True, scaling=scaling)

    def heads_of(chip: int) -> Iterator[TensorRange | Constant]:
        q_heads, kv_heads = parallel.q_head_of[chip], parallel.kv_head_of[chip]
        yield from (Constant(size) if h is None else query(h) for h in q_heads)
        yield from (key(h) for h in kv_heads)
        yield from (TensorRange(v, h * size, size) for h in kv_heads)

    return tuple(Projection(0, _in_width(config, heads_of(chip)), other) for chip in range(parallel.tp))


def centered_biases(layer: str, config: DecoderConfig, parallel: ParallelPlan, rope: Rope) -> Slices:
    """[1, kv_heads * head_dim]: the bias of the chip's centered pairs of keys, in rotary pairs; zeros elsewhere."""
    name, size = f"{layer}self_attn.k_proj.bias", config.head_dim

    def key(h: int) -> TensorRange:
        scaling = KeyScaling(name, h * size, rope=rope, part="centered")
        return TensorRange(name, h * size, size, pairs=True, scaling=scaling)

    return tuple(Projection(0, _in_width(config, map(key, heads)), 1) for heads in parallel.kv_head_of)


def _in_width(config: DecoderConfig, heads: Iterable[TensorRange | Constant]) -> tuple[TensorRange | Constant, ...]:
    """Each head, then zeros up to its columns on a chip."""
    missing = config.head_width - config.head_dim
    return tuple(block for head in heads for block in (head, *[Constant(missing)] * (missing > 0)))


def o_weights(layer: str, config: DecoderConfig, parallel: ParallelPlan) -> Slices:
    """[q_heads * head_dim, hidden]; the chips' products add up to the whole.

    The rows of a zero head are zero. They remove the attention output of its zero query, the mean of the values.
    """
    name, size = f"{layer}self_attn.o_proj.weight", config.head_dim

    def rows(heads) -> tuple[TensorRange | Constant, ...]:
        return _in_width(config, (Constant(size) if h is None else TensorRange(name, h * size, size) for h in heads))

    return tuple(Projection(1, rows(heads), config.hidden_size) for heads in parallel.q_head_of)


def o_biases(layer: str, config: DecoderConfig, parallel: ParallelPlan) -> Slices:
    """[1, hidden]: the bias of o_weights on the first chip, zeros on the others."""
    hidden = config.hidden_size
    bias = TensorRange(f"{layer}self_attn.o_proj.bias", 0, hidden)
    return tuple(Projection(0, (Constant(hidden) if chip else bias,), 1) for chip in range(parallel.tp))


def mlp_weights(layer: str, name: str, config: DecoderConfig, parallel: ParallelPlan) -> Slices:
    """gate and up: [hidden, mlp], zero columns after the model's last; down: [mlp, hidden], zero rows after it."""
    split_dim, extent = int(name == "down"), config.intermediate_size
    return _split(f"{layer}mlp.{name}_proj.weight", split_dim, extent, parallel.mlp, config.hidden_size, parallel.tp)


def lm_head_weights(config: DecoderConfig, parallel: ParallelPlan) -> Slices:
    """[hidden, vocab], zero columns after the vocabulary. Column t of all chips' columns is token t."""
    return _split("lm_head.weight", 0, config.vocab_size, parallel.vocab, config.hidden_size, parallel.tp)


def _split(name: str, split_dim: int, extent: int, share: int, other: int, tp: int) -> Slices:
    """Split `extent` rows or columns over tp chips, `share` each. Zeros pad the last shares."""
    slices = []
    for chip in range(tp):
        first = min(chip * share, extent)
        count = min(share, extent - first)
        blocks = (TensorRange(name, first, count),) if count else ()
        slices.append(Projection(split_dim, blocks, other).padded(share))
    return tuple(slices)
