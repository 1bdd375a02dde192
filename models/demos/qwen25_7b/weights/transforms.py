"""What each chip of a row holds of every weight: all tensor-parallel arithmetic that ParallelPlan leaves to the weights.

A result has one part a chip, in the order of the chips. `layer` is a layer's prefix, such as "model.layers.3.".
"""

from ..config import ParallelPlan, QwenConfig
from .parts import Constant, Equalised, Projection, Taken

Parts = tuple[Projection, ...]


def qkv_weights(layer: str, config: QwenConfig, plan: ParallelPlan) -> Parts:
    """[hidden, (q_heads + 2 * kv_heads) * head_dim]: a chip's [queries | keys | values], q and k in rotary pairs."""
    return _qkv(layer, "weight", config.hidden_size, config, plan)


def qkv_biases(layer: str, config: QwenConfig, plan: ParallelPlan) -> Parts:
    """The biases that belong to qkv_weights: [1, (q_heads + 2 * kv_heads) * head_dim]."""
    return _qkv(layer, "bias", 1, config, plan)


def _qkv(layer: str, kind: str, other: int, config: QwenConfig, plan: ParallelPlan) -> Parts:
    size = config.head_dim
    q, k, v = (f"{layer}self_attn.{name}_proj.{kind}" for name in "qkv")
    k_bias, group = f"{layer}self_attn.k_proj.bias", config.num_attention_heads // config.num_key_value_heads

    def query(h: int) -> Taken:
        return Taken(q, h * size, size, pairs=True, equalised=Equalised(k_bias, h // group * size, queries=True))

    def key(h: int) -> Taken:
        return Taken(k, h * size, size, pairs=True, equalised=Equalised(k_bias, h * size))

    return tuple(
        Projection(
            0,
            (
                *(Constant(size) if h is None else query(h) for h in q_heads),
                *(key(h) for h in kv_heads),
                *(Taken(v, h * size, size) for h in kv_heads),
            ),
            other,
        )
        for q_heads, kv_heads in zip(plan.q_head_of, plan.kv_head_of)
    )


def o_weights(layer: str, config: QwenConfig, plan: ParallelPlan) -> Parts:
    """[q_heads * head_dim, hidden]; the chips' products add up to the whole.

    A zero head's rows are zero: whatever attention makes of its zero query (the mean of the values) is multiplied away.
    """
    name, size = f"{layer}self_attn.o_proj.weight", config.head_dim
    return tuple(
        Projection(
            1,
            tuple(Constant(size) if h is None else Taken(name, h * size, size) for h in heads),
            config.hidden_size,
        )
        for heads in plan.q_head_of
    )


def gate_weights(layer: str, config: QwenConfig, plan: ParallelPlan) -> Parts:
    """[hidden, mlp], zero columns after the model's last."""
    return _shares(f"{layer}mlp.gate_proj.weight", 0, config.intermediate_size, plan.mlp, config.hidden_size, plan.tp)


def up_weights(layer: str, config: QwenConfig, plan: ParallelPlan) -> Parts:
    """[hidden, mlp], zero columns after the model's last."""
    return _shares(f"{layer}mlp.up_proj.weight", 0, config.intermediate_size, plan.mlp, config.hidden_size, plan.tp)


def down_weights(layer: str, config: QwenConfig, plan: ParallelPlan) -> Parts:
    """[mlp, hidden], zero rows after the model's last."""
    return _shares(f"{layer}mlp.down_proj.weight", 1, config.intermediate_size, plan.mlp, config.hidden_size, plan.tp)


def lm_head_weights(config: QwenConfig, plan: ParallelPlan) -> Parts:
    """[hidden, vocab], zero columns after the vocabulary: column t of all chips' is token t."""
    return _shares("lm_head.weight", 0, config.vocab_size, plan.vocab, config.hidden_size, plan.tp)


def _shares(name: str, cut: int, extent: int, share: int, other: int, tp: int) -> Parts:
    """`extent` rows or columns of a tensor, `share` for each of tp chips; the last ones are filled up with zeros."""
    parts = []
    for chip in range(tp):
        first = min(chip * share, extent)
        count = min(share, extent - first)
        blocks = (Taken(name, first, count),) if count else ()
        parts.append(Projection(cut, blocks, other).filled(share))
    return tuple(parts)
