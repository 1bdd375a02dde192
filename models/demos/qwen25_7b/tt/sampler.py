"""TtSampler: the next token of each slot, sampled on the chips: only token ids leave them. HF: generate's sampling.

TtPenalties: lower logits for tokens that a sequence has already. HF: RepetitionPenaltyLogitsProcessor; vLLM: presence
and frequency penalty.
"""

from typing import Iterable, Iterator, Sequence

import torch
import ttnn

from ..config.sampling import CANDIDATES
from ..plans.parallel_plan import MAX_USERS
from .full_sampler import TtFullSampler
from .inputs import NEVER, SamplingControls
from .linear import compute_config
from .model_config import TtModelConfig
from .placement import free, host_tensor, replicate, shard

L1 = ttnn.L1_MEMORY_CONFIG
Logits = Sequence[ttnn.Tensor]  # shards


class TtPenalties:
    """The token counts of each slot's sequence. A chip holds its own columns of the vocabulary.

    - seen: 1 for tokens of the prompt or the answer, else 0.
    - counts: occurrences of each token in the answer.

    Both are [1, 1, 32, vocab] bfloat16 a chip, allocated once. When sequences change slots, the host writes a table to
    `rows`, and the chips make its tiles. The chips record the token of every step.
    """

    def __init__(self, mesh_device: ttnn.MeshDevice, model_config: TtModelConfig):
        self.mesh_device = mesh_device
        self.columns = model_config.parallel.tp * model_config.parallel.vocab
        none = torch.zeros(1, 1, MAX_USERS, self.columns, dtype=torch.bfloat16)
        self.seen, self.counts = (shard(none, mesh_device, 3) for _ in range(2))
        self.rows = ttnn.to_device(self.to_host(none), mesh_device, memory_config=ttnn.DRAM_MEMORY_CONFIG)
        self.load(self.seen)  # compiled before there is a trace
        tokens = torch.arange(self.columns, dtype=torch.float32)[None, None, None]
        self.tokens = shard(tokens, mesh_device, 3, ttnn.float32)  # [1, 1, 1, vocab] a chip
        self.ones = replicate(torch.ones(1, 1, MAX_USERS, 1), mesh_device, ttnn.float32)

    def to_host(self, table: torch.Tensor) -> ttnn.Tensor:
        """[1, 1, 32, columns] bfloat16 -> `rows` on the host. Row-major: the chips make the tiles, in less time."""
        return host_tensor(table, self.mesh_device, ttnn.bfloat16, ttnn.ROW_MAJOR_LAYOUT, 3)

    def load(self, table: ttnn.Tensor) -> None:
        """Write `rows` into `seen` or `counts`."""
        tiles = ttnn.tilize(self.rows)
        ttnn.copy(tiles, table)
        ttnn.deallocate(tiles)

    def forward(self, logits: ttnn.Tensor, controls: SamplingControls) -> ttnn.Tensor:
        """[1, 1, 32, vocab] bfloat16 -> the same in L1, penalized as on the host (engine/sampling.py).

        Every op here is exact on a chip. A sum of float32 and bfloat16 cuts the float32 to ten mantissa bits. A product
        with a column of ones therefore converts the logits to float32 first.
        """
        relu, neg, gtz = ttnn.UnaryOpType.RELU, ttnn.UnaryOpType.NEG, ttnn.UnaryOpType.GTZ
        # Masked first: a padding logit times a large penalty would be infinite, and infinity times 0 is NaN.
        old = ttnn.mul(logits, self.seen, memory_config=L1)  # bfloat16
        changed = ttnn.mul(
            old, controls.positive, input_tensor_a_activations=[relu], dtype=ttnn.float32, memory_config=L1
        )
        other = ttnn.mul(
            old, controls.negative, input_tensor_a_activations=[neg, relu], dtype=ttnn.float32, memory_config=L1
        )
        ttnn.deallocate(old)
        ttnn.subtract(changed, other, output_tensor=changed)
        ttnn.mul(logits, self.ones, output_tensor=other)
        ttnn.add(changed, other, output_tensor=changed)
        ttnn.mul(self.counts, controls.frequency, output_tensor=other)
        ttnn.subtract(changed, other, output_tensor=changed)
        ttnn.mul(self.counts, controls.presence, input_tensor_a_activations=[gtz], output_tensor=other)
        penalized = ttnn.subtract(changed, other, dtype=ttnn.bfloat16, memory_config=L1)
        free(changed, other)
        return penalized

    def record(self, sampled: ttnn.Tensor) -> None:
        """Add the first column of sampled [1, 1, 32, n] uint32, a token id a slot, to `seen` and `counts`."""
        ids = ttnn.typecast(sampled, ttnn.float32)  # exact: ids are below 2**24
        first = ttnn.slice(ids, [0, 0, 0, 0], [1, 1, MAX_USERS, 1], memory_config=L1)
        new = ttnn.eq(self.tokens, first, dtype=ttnn.bfloat16, memory_config=L1)  # [1, 1, 32, vocab]
        ttnn.maximum(self.seen, new, output_tensor=self.seen)
        ttnn.add(self.counts, new, output_tensor=self.counts)
        free(ids, first, new)


class TtSampler:
    """Samples a token id for each slot on the chips.

    A chip takes the 32 largest logits of each of its shards. The chips exchange these candidates, and every chip
    samples the same token.

    - logits arguments: the shards [1, 1, 32, columns] that TtLMHead returns.
    - tokens arguments: [1, 1, 1, 32] uint32, the place of each slot's token id.
    """

    def __init__(self, mesh_device: ttnn.MeshDevice, model_config: TtModelConfig):
        self.chips = model_config.parallel.tp
        self.kernel = compute_config()
        self.shards = model_config.logits_shards
        self.full = TtFullSampler(mesh_device, model_config)
        missing = [topk_columns(columns) - columns for _, columns in self.shards]
        # [1, 1, 32, missing] of -inf each; None where nothing is missing
        self.paddings = [
            replicate(torch.full((1, 1, MAX_USERS, n), -torch.inf), mesh_device) if n else None for n in missing
        ]
        vocab = model_config.parallel.vocab
        firsts = [first + chip * vocab for chip in range(self.chips) for first, _ in self.shards]
        of_candidates = torch.tensor(firsts).repeat_interleave(CANDIDATES)
        # [1, 1, 32, shards * CANDIDATES] a chip: the token id of the first column of each candidate's shard
        self.first = shard(of_candidates.repeat(1, 1, MAX_USERS, 1).int(), mesh_device, 3, ttnn.uint32)
        # An inactive slot's logits may be NaN; topk may then return any column, so its id is clamped to the vocabulary.
        end_of_shards = max(first + topk_columns(columns) for first, columns in self.shards)
        highest = (self.chips - 1) * vocab + end_of_shards - 1
        last = model_config.dims.vocab_size - 1
        self.last = last if highest > last else None

    def sample_greedy(self, logits: Iterable[ttnn.Tensor], tokens: ttnn.Tensor) -> None:
        """Write each slot's token with the largest logit."""
        best, best_ids = self._best(logits)
        free(best)
        self._write(best_ids, tokens)

    def sample_random(self, logits: Iterable[ttnn.Tensor], controls: SamplingControls, tokens: ttnn.Tensor) -> None:
        """Write a token for each slot by its controls. A greedy slot gets the token with the largest logit."""
        self._write(self._ranked(*self._best(logits), controls), tokens)

    def sample_penalized(
        self, logits: Logits, controls: SamplingControls, penalties: TtPenalties, tokens: ttnn.Tensor, *, record: bool
    ) -> None:
        """Write a token for each slot by its controls and penalties. record: count the tokens in `penalties`."""
        changed = self._penalize(logits, controls, penalties)
        sampled = self._ranked(*self._best(self._shards_of(changed)), controls)
        free(changed)
        if record:
            penalties.record(sampled)
        self._write(sampled, tokens)

    def sample_full(
        self, logits: Logits, controls: SamplingControls, penalties: TtPenalties, tokens: ttnn.Tensor, *, record: bool
    ) -> None:
        """sample_penalized, and full slots sample from the whole vocabulary (tt/full_sampler.py)."""
        changed = self._penalize(logits, controls, penalties)
        best, best_ids = self._best(self._shards_of(changed))
        largest = ttnn.slice(best, [0, 0, 0, 0], [1, 1, MAX_USERS, 1], memory_config=L1)
        # [1, 1, 32, 1] float32
        of_all = self.full.forward(changed, largest, controls.inverse_temperature, controls.noise)
        free(changed, largest)
        ranked = self._ranked(best, best_ids, controls)
        ranked32 = ttnn.typecast(ranked, ttnn.float32)  # exact: ids are below 2**24
        first = ttnn.slice(ranked32, [0, 0, 0, 0], [1, 1, MAX_USERS, 1], memory_config=L1)
        ids = ttnn.where(controls.full, of_all, first)
        sampled = ttnn.typecast(ids, ttnn.uint32)
        free(of_all, ranked, ranked32, first, ids)
        if record:
            penalties.record(sampled)
        self._write(sampled, tokens)

    @staticmethod
    def _penalize(logits: Logits, controls: SamplingControls, penalties: TtPenalties) -> ttnn.Tensor:
        """Penalized logits [1, 1, 32, vocab] bfloat16 in L1, all shards at once: one launch costs less than several."""
        if len(logits) == 1:
            return penalties.forward(logits[0], controls)
        whole = ttnn.concat(list(logits), dim=-1, memory_config=L1)
        changed = penalties.forward(whole, controls)
        free(whole)
        return changed

    def _shards_of(self, whole: ttnn.Tensor) -> Iterator[ttnn.Tensor]:
        """The shards of [1, 1, 32, vocab]. Each shard is freed when the next shard is requested."""
        if len(self.shards) == 1:
            yield whole
            return
        for first, columns in self.shards:
            of_shard = ttnn.slice(whole, [0, 0, 0, first], [1, 1, MAX_USERS, first + columns], memory_config=L1)
            yield of_shard
            free(of_shard)

    def _ranked(self, best: ttnn.Tensor, best_ids: ttnn.Tensor, controls: SamplingControls) -> ttnn.Tensor:
        """_best's candidates -> token ids [1, 1, 32, CANDIDATES] by falling score, the first sampled. Frees them."""
        scores = self._scores(best, controls)
        _, indices = ttnn.topk(scores, CANDIDATES, dim=-1, stable=True, memory_config=L1)
        sampled = ttnn.gather(best_ids, -1, indices, memory_config=L1)
        free(best_ids, scores, indices)
        return sampled

    def _best(self, logits: Iterable[ttnn.Tensor]) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        """The largest logits of the whole vocabulary and their token ids, [1, 1, 32, CANDIDATES] each, falling."""
        values, ids = self._candidates(logits)
        values, ids = self._gather_chips(values), self._gather_chips(ids)
        if values.shape[-1] > CANDIDATES:
            best, indices = ttnn.topk(values, CANDIDATES, dim=-1, stable=True, memory_config=L1)
            best_ids = ttnn.gather(ids, -1, indices, memory_config=L1)
            free(values, ids, indices)
            values, ids = best, best_ids
        if self.last is not None:
            clamped = ttnn.minimum(ids, self.last, memory_config=L1)
            free(ids)
            ids = clamped
        return values, ids

    def _candidates(self, logits: Iterable[ttnn.Tensor]) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        """The largest logits of each shard and their token ids, [1, 1, 32, shards * CANDIDATES] each.

        Of equal logits the lower token id comes first, here and in `_best`: `stable` keeps the order of the columns.
        """
        best = []
        for padding, of_shard in zip(self.paddings, logits, strict=True):
            wide = of_shard if padding is None else ttnn.concat([of_shard, padding], dim=-1, memory_config=L1)
            best.append(ttnn.topk(wide, CANDIDATES, dim=-1, stable=True, memory_config=L1))
            if padding is not None:
                free(wide)
        values, indices = (_concat(list(parts)) for parts in zip(*best))
        indices32 = ttnn.typecast(indices, ttnn.uint32)
        ids = ttnn.add(indices32, self.first, memory_config=L1)
        free(indices, indices32)
        return values, ids

    def _gather_chips(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """[1, 1, 32, n] of each chip -> [1, 1, 32, chips * n] on every chip. Frees x."""
        if self.chips == 1:
            return x
        whole = ttnn.all_gather(x, dim=3, cluster_axis=1, memory_config=L1)
        free(x)
        return whole

    def _scores(self, best: ttnn.Tensor, controls: SamplingControls) -> ttnn.Tensor:
        """[1, 1, 32, CANDIDATES] float32, of which the largest is sampled; op for op engine/sampling.py. Frees best."""
        values = ttnn.typecast(best, ttnn.float32)
        scaled = ttnn.mul(values, controls.inverse_temperature)
        masked = ttnn.add(scaled, controls.allowed)
        probabilities = ttnn.softmax(masked, dim=-1, compute_kernel_config=self.kernel)
        sums = ttnn.cumsum(probabilities, dim=-1)
        before = ttnn.sub(sums, probabilities)
        dropped = ttnn.ge(before, controls.top_p)
        noisy = ttnn.add(masked, controls.noise)
        scores = ttnn.where(dropped, NEVER, noisy)
        free(best, values, scaled, masked, probabilities, sums, before, dropped, noisy)
        return scores

    def _write(self, sampled: ttnn.Tensor, tokens: ttnn.Tensor) -> None:
        """Copy the first column of sampled [1, 1, 32, CANDIDATES] into tokens. Frees sampled."""
        row = ttnn.transpose(sampled, 2, 3, memory_config=L1)  # [1, 1, CANDIDATES, 32]
        first = ttnn.untilize_with_unpadding(row, output_tensor_end=(0, 0, 0, MAX_USERS - 1), memory_config=L1)
        ttnn.copy(first, tokens)  # [1, 1, 1, 32]
        free(sampled, row, first)


def topk_columns(columns: int) -> int:
    """The next width that topk computes on all cores: a power of two, at least 64."""
    return max(64, 1 << (columns - 1).bit_length())


def _concat(parts: list[ttnn.Tensor]) -> ttnn.Tensor:
    if len(parts) == 1:
        return parts[0]
    whole = ttnn.concat(parts, dim=-1, memory_config=L1)
    free(*parts)
    return whole
