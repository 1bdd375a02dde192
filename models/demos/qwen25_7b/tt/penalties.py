"""TtPenalties: what a text has already makes its logits lower, on the chips. HF: RepetitionPenaltyLogitsProcessor; vLLM's other two."""

from typing import NamedTuple, Sequence

import torch
import ttnn

from models.demos.qwen25_7b.config import MAX_USERS, ParallelPlan
from models.demos.qwen25_7b.config.sampling import MOST_COUNTED, Seen
from models.demos.qwen25_7b.tt.placement import host_sharded, shard

L1 = ttnn.L1_MEMORY_CONFIG


class PenaltyControls(NamedTuple):
    """Device tensors [1, 1, 32, 1] float32, a row a user: config.sampling.PenaltyFactors. Rows of zeros change nothing."""

    positive: ttnn.Tensor
    negative: ttnn.Tensor
    frequency: ttnn.Tensor
    presence: ttnn.Tensor


class TtPenalties:
    """What each row's text has of a chip's columns, and what that makes of its logits.

    seen: 1 for tokens of prompt or answer, 0 for others; counts: how often the answer has them. Both stay allocated,
    [1, 1, 32, plan.vocab] bfloat16 a chip; the host writes them when texts come (host_seen), the chips after each step.
    """

    def __init__(self, mesh_device: ttnn.MeshDevice, plan: ParallelPlan):
        self.mesh_device, self.columns = mesh_device, plan.tp * plan.vocab
        self.seen, self.counts = (
            ttnn.to_device(t, mesh_device, memory_config=ttnn.DRAM_MEMORY_CONFIG) for t in self.host_seen({})
        )
        tokens = torch.arange(self.columns, dtype=torch.float32)[None, None, None]
        self.tokens = shard(tokens, mesh_device, 3, ttnn.float32)  # [1, 1, 1, plan.vocab] a chip: each column's token

    def host_seen(self, texts: dict[int, Seen]) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        """seen and counts on the host; texts: by row."""
        seen, counts = (torch.zeros(1, 1, MAX_USERS, self.columns, dtype=torch.bfloat16) for _ in range(2))
        for row, text in texts.items():
            seen[0, 0, row, _ids(text.prompt)] = seen[0, 0, row, _ids(text.answer)] = 1
            counts[0, 0, row] = _ids(text.answer).bincount(minlength=self.columns).clamp(max=MOST_COUNTED)
        return tuple(host_sharded(t, self.mesh_device, 3, ttnn.bfloat16) for t in (seen, counts))

    def forward(self, logits: ttnn.Tensor, by: PenaltyControls) -> ttnn.Tensor:
        """[1, 1, 32, plan.vocab] bfloat16 -> the same in L1, penalised. Op for op what sampling.penalised does in float32.

        Masked first: a padding column's logit times a large penalty would be infinite, and that times 0 no number.
        """
        relu, neg, gtz = ttnn.UnaryOpType.RELU, ttnn.UnaryOpType.NEG, ttnn.UnaryOpType.GTZ
        old = ttnn.mul(logits, self.seen, memory_config=L1)
        wide = dict(dtype=ttnn.float32, memory_config=L1)
        changed = ttnn.mul(old, by.positive, input_tensor_a_activations=[relu], **wide)
        other = ttnn.mul(old, by.negative, input_tensor_a_activations=[neg, relu], **wide)
        ttnn.deallocate(old)
        ttnn.subtract(changed, other, output_tensor=changed)
        ttnn.add(changed, logits, output_tensor=changed)
        ttnn.mul(self.counts, by.frequency, output_tensor=other)
        ttnn.subtract(changed, other, output_tensor=changed)
        ttnn.mul(self.counts, by.presence, input_tensor_a_activations=[gtz], output_tensor=other)
        penalised = ttnn.subtract(changed, other, dtype=ttnn.bfloat16, memory_config=L1)
        ttnn.deallocate(changed)
        ttnn.deallocate(other)
        return penalised

    def record(self, chosen: ttnn.Tensor) -> None:
        """chosen: [1, 1, 32, n] uint32, of which the first column is what each row's answer has one more of."""
        ids = ttnn.typecast(chosen, ttnn.float32)  # exact: below 2**24
        first = ttnn.slice(ids, [0, 0, 0, 0], [1, 1, MAX_USERS, 1], memory_config=L1)
        new = ttnn.eq(self.tokens, first, dtype=ttnn.bfloat16, memory_config=L1)
        ttnn.maximum(self.seen, new, output_tensor=self.seen)
        ttnn.add(self.counts, new, output_tensor=self.counts)
        for tensor in (ids, first, new):
            ttnn.deallocate(tensor)


def _ids(tokens: Sequence[int]) -> torch.Tensor:
    return torch.tensor(list(tokens), dtype=torch.long)
