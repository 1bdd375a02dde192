"""Each chip's slice of every weight: the tensor-parallel arithmetic that ParallelPlan leaves to the weights.

A result has one slice a chip, in the order of the chips. `layer` is a layer's prefix, such as "model.layers.3.".
"""

from itertools import chain
from typing import Iterable, Iterator, Literal, Optional, Sequence

from ..config import DecoderConfig
from ..config.rope import Rope
from .parallel_plan import ParallelPlan
from .slices import Constant, KeyScaling, Projection, TensorRange

PADDING_LOGIT = -1e30  # the logit of columns past the vocabulary: no sampler takes them

Slices = tuple[Projection, ...]
Block = TensorRange | Constant


def qkv_slices(
    kind: Literal["weight", "bias"], layer: str, config: DecoderConfig, parallel: ParallelPlan, rope: Optional[Rope]
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

    def heads_of(chip: int) -> Iterator[Block]:
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


def _in_width(config: DecoderConfig, heads: Iterable[Block]) -> tuple[Block, ...]:
    """Each head, then zeros up to its columns on a chip."""
    return tuple(block for head in heads for block in _padded(head, config.head_width))


def o_weights(layer: str, config: DecoderConfig, parallel: ParallelPlan) -> Slices:
    """[q_heads * head_dim, hidden]; the chips' products add up to the whole.

    The rows of a zero head are zero. They remove the attention output of its zero query, the mean of the values.
    """
    name, size = f"{layer}self_attn.o_proj.weight", config.head_dim

    def rows(heads) -> tuple[Block, ...]:
        return _in_width(config, (Constant(size) if h is None else TensorRange(name, h * size, size) for h in heads))

    return tuple(Projection(1, rows(heads), config.hidden_size) for heads in parallel.q_head_of)


def o_biases(layer: str, config: DecoderConfig, parallel: ParallelPlan) -> Slices:
    """[1, hidden]: the bias of o_weights on the first chip, zeros on the others."""
    hidden = config.hidden_size
    bias = TensorRange(f"{layer}self_attn.o_proj.bias", 0, hidden)
    return tuple(Projection(0, (Constant(hidden) if chip else bias,), 1) for chip in range(parallel.tp))


def mlp_weights(layer: str, names: Sequence[str], config: DecoderConfig, parallel: ParallelPlan, stored: int) -> Slices:
    """gate, up, or both side by side: [hidden, stored] each; down: [stored, hidden]. Zeros follow the model's own."""

    def share(name: str, chip: int) -> tuple[Block, ...]:
        first = chip * parallel.mlp
        count = min(parallel.mlp, config.intermediate_size - first)
        return _padded(TensorRange(f"{layer}mlp.{name}_proj.weight", first, count), stored)

    return tuple(
        Projection(int("down" in names), tuple(chain(*(share(name, chip) for name in names))), config.hidden_size)
        for chip in range(parallel.tp)
    )


def lm_head_weights(config: DecoderConfig, parallel: ParallelPlan, first: int, columns: int) -> Slices:
    """[hidden, columns] from each chip's column `first` on. Column t of all chips' columns is token t; zero columns
    follow the vocabulary."""
    tokens, hidden = _tokens(config, parallel, first, columns), config.hidden_size
    return tuple(Projection(0, _padded(TensorRange("lm_head.weight", *own), columns), hidden) for own in tokens)


def lm_head_biases(config: DecoderConfig, parallel: ParallelPlan, first: int, columns: int) -> Slices:
    """[1, columns]: 0 for the columns of tokens, PADDING_LOGIT for the columns after them."""
    tokens = _tokens(config, parallel, first, columns)
    return tuple(Projection(0, _padded(Constant(count), columns, PADDING_LOGIT), 1) for _, count in tokens)


def _tokens(config: DecoderConfig, parallel: ParallelPlan, first: int, columns: int) -> Iterator[tuple[int, int]]:
    """The first token of each chip's columns, and how many of the columns are tokens'."""
    for start in range(first, parallel.tp * parallel.vocab, parallel.vocab):
        yield start, min(columns, config.vocab_size - start)


def _padded(block: Block, extent: int, value: float = 0.0) -> tuple[Block, ...]:
    """The block, then rows or columns of a value, `extent` in all. A block may have none, or less than none."""
    blocks = block, Constant(extent - max(0, block.count), value)
    return tuple(block for block in blocks if block.count > 0)
