"""Which part of the model each chip of a mesh row holds.

All tensor-parallel arithmetic is here and in the weight transforms. A module sees one chip's counts
and never a rank, so its forward reads like the model's formula.
"""

from dataclasses import dataclass
from typing import Optional

from ..config import ConfigError, DecoderConfig
from .grids import TILE, ceil_div

MAX_USERS = TILE  # users of a replica: a tile row holds 32
SPLITS = (1, 2, 4, 8)  # chips that may share a replica


@dataclass(frozen=True)
class ParallelPlan:
    """The split of one model over `tp` chips of a mesh row.

    Every chip runs the same program and has the same counts. Zeros fill up a count that does not
    divide, and cannot change the result:

    - Heads. With tp up to kv_heads, a chip takes a contiguous block of KV heads with their queries.
      With more chips, each KV head is copied to tp / kv_heads neighboring chips, which share its
      queries. At tp 8 the 7B's seven queries go 4 + 3. The eighth place is a zero head (None) with
      zero rows in Wo.
    - MLP and vocabulary. Columns are split evenly in whole tiles. Zero columns follow the last real
      column, on the last chips. A zero MLP column adds nothing: silu(0) * 0 meets a zero row of the
      down projection. A bias of -1e30 (TtLMHead) keeps zero vocabulary columns below every real
      logit, so no sampler takes them. The 7B needs neither at any tp.

    On a chip, the queries of a KV head are contiguous, and each KV head has equally many. Query i
    reads KV head i // (q_heads / kv_heads), as grouped-query attention requires.
    """

    tp: int  # chips
    q_heads: int  # a chip, zero heads included
    kv_heads: int  # a chip
    mlp: int  # columns of the gate and up projections a chip, a multiple of TILE
    vocab: int  # columns of the LM head a chip, a multiple of TILE
    q_head_of: tuple[tuple[Optional[int], ...], ...]  # [chip][place]: HF's query head, None for a zero head
    kv_head_of: tuple[tuple[int, ...], ...]  # [chip][place]: HF's KV head

    @classmethod
    def make(cls, config: DecoderConfig, tp: int) -> "ParallelPlan":
        """Split `config` over `tp` chips."""
        if tp not in SPLITS:
            raise ConfigError(f"tp must divide a row of 8, 4, 2 or 1 chips; got {tp}")
        kv_total = config.num_key_value_heads
        if not cls.deals_out(kv_total, tp):
            raise ConfigError(f"tp must divide the model's {kv_total} KV heads or be a multiple of them; got {tp}")
        copies, kv_heads = (1, kv_total // tp) if kv_total % tp == 0 else (tp // kv_total, 1)

        group = config.num_attention_heads // kv_total  # queries that share a KV head
        group_on_chip = ceil_div(group, copies)
        kv_head_of, q_head_of = [], []
        for chip in range(tp):
            first = (chip // copies) * kv_heads
            kv_here = range(first, first + kv_heads)
            start = (chip % copies) * group_on_chip  # within the group
            places = range(start, start + group_on_chip)
            kv_head_of.append(tuple(kv_here))
            q_head_of.append(tuple(kv * group + i if i < group else None for kv in kv_here for i in places))

        return cls(
            tp=tp,
            q_heads=kv_heads * group_on_chip,
            kv_heads=kv_heads,
            # the fewest whole tiles that hold all columns
            mlp=ceil_div(config.intermediate_size, TILE * tp) * TILE,
            vocab=ceil_div(config.vocab_size, TILE * tp) * TILE,
            q_head_of=tuple(q_head_of),
            kv_head_of=tuple(kv_head_of),
        )

    @staticmethod
    def deals_out(kv_heads: int, tp: int) -> bool:
        """Whether tp chips can share a model's KV heads evenly, each head whole on its chips."""
        return kv_heads % tp == 0 or tp % kv_heads == 0
