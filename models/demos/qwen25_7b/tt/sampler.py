"""TtSampler: the next token of each user, chosen on the chips, so that only token ids leave them. HF: generate's sampling."""

from typing import Iterable, Iterator, NamedTuple, Sequence

import torch
import ttnn

from models.demos.qwen25_7b.config import MAX_USERS, ParallelPlan
from models.demos.qwen25_7b.config.sampling import CANDIDATES, GREEDY, NEVER, PenaltyFactors, RowControls, Sampling
from models.demos.qwen25_7b.tt.linear import compute_config
from models.demos.qwen25_7b.tt.penalties import PenaltyControls, TtPenalties
from models.demos.qwen25_7b.tt.placement import chips_in_row, host_replicated, replicate, shard

L1 = ttnn.L1_MEMORY_CONFIG


class SamplingControls(NamedTuple):
    """Device tensors, float32 in tiles, a row a user; they stay allocated and are written anew when users change."""

    inverse_temperature: ttnn.Tensor  # [1, 1, 32, 1]
    allowed: ttnn.Tensor  # [1, 1, 32, CANDIDATES]: 0, or NEVER past a user's top-k
    top_p: ttnn.Tensor  # [1, 1, 32, 1]
    positive: ttnn.Tensor  # these four as in PenaltyControls
    negative: ttnn.Tensor
    frequency: ttnn.Tensor
    presence: ttnn.Tensor
    noise: ttnn.Tensor  # [1, 1, 32, CANDIDATES]: new for every step of a user who samples

    @property
    def penalties(self) -> PenaltyControls:
        return PenaltyControls(self.positive, self.negative, self.frequency, self.presence)


def host_controls(mesh_device: ttnn.MeshDevice, samplings: Sequence[Sampling]) -> tuple[ttnn.Tensor, ...]:
    """SamplingControls but for the noise, on the host: row u for samplings[u], other rows greedy."""
    of_rows = (*samplings, *[GREEDY] * (MAX_USERS - len(samplings)))
    rows, factors = [RowControls.of(s) for s in of_rows], zip(*map(PenaltyFactors.of, of_rows))
    columns = (
        torch.tensor([row.inverse_temperature for row in rows])[None, None, :, None],
        torch.stack([row.allowed for row in rows])[None, None],
        torch.tensor([row.top_p for row in rows], dtype=torch.float32)[None, None, :, None],
        *(torch.tensor(column, dtype=torch.float32)[None, None, :, None] for column in factors),
    )
    return tuple(host_replicated(c, mesh_device, ttnn.float32, ttnn.TILE_LAYOUT) for c in columns)


def host_noise(mesh_device: ttnn.MeshDevice, rows: torch.Tensor) -> ttnn.Tensor:
    """rows: [32, CANDIDATES]"""
    return host_replicated(rows[None, None], mesh_device, ttnn.float32, ttnn.TILE_LAYOUT)


def topk_columns(columns: int) -> int:
    """The next width that topk works on with all cores: a power of two. Its least is 64."""
    return max(64, 1 << (columns - 1).bit_length())


class TtSampler:
    """A chip takes the 32 largest of each piece of its logits, the chips exchange theirs, and each makes the same choice.

    pieces: (first column, columns) of each piece of a chip's logits (TtLMHead). vocab_size: rows of the embedding table.
    """

    def __init__(
        self, mesh_device: ttnn.MeshDevice, plan: ParallelPlan, pieces: Sequence[tuple[int, int]], vocab_size: int
    ):
        self.chips = chips_in_row(mesh_device)
        self.kernel, self.pieces = compute_config(), pieces
        self.fillers = [self._filler(mesh_device, topk_columns(columns) - columns) for _, columns in pieces]
        firsts = [first + chip * plan.vocab for chip in range(self.chips) for first, _ in pieces]
        of_candidates = torch.tensor(firsts).repeat_interleave(CANDIDATES).repeat(1, 1, MAX_USERS, 1).int()
        self.first = shard(of_candidates, mesh_device, 3, ttnn.uint32)  # [1, 1, 32, pieces * CANDIDATES] a chip
        # An idle row's logits may be NaN, among which any column can come first: then its id goes no further than this.
        highest = (self.chips - 1) * plan.vocab + max(first + topk_columns(columns) for first, columns in pieces) - 1
        self.last = vocab_size - 1 if highest >= vocab_size else None

    @staticmethod
    def _filler(mesh_device: ttnn.MeshDevice, columns: int) -> ttnn.Tensor | None:
        return replicate(torch.full((1, 1, MAX_USERS, columns), -torch.inf), mesh_device) if columns else None

    def likeliest(self, logits: Iterable[ttnn.Tensor], tokens: ttnn.Tensor) -> None:
        """logits: pieces [1, 1, 32, columns]. tokens [1, 1, 1, 32] uint32: where each row's likeliest token is written."""
        best, best_ids = self._best(logits)
        _free(best)
        self._write(best_ids, tokens)

    def drawn(self, logits: Iterable[ttnn.Tensor], controls: SamplingControls, tokens: ttnn.Tensor) -> None:
        """The same for rows with options of their own; a greedy one gets its likeliest token here, too."""
        self._write(self._drawn(logits, controls), tokens)

    def penalised(
        self,
        logits: Sequence[ttnn.Tensor],
        controls: SamplingControls,
        penalties: TtPenalties,
        tokens: ttnn.Tensor,
        *,
        record: bool,
    ) -> None:
        """The same for rows with penalties. record: what is chosen is seen from now on, in every row."""
        chosen = self._drawn(self._penalised(logits, controls, penalties), controls)
        if record:
            penalties.record(chosen)
        self._write(chosen, tokens)

    def _penalised(self, logits: Sequence[ttnn.Tensor], controls, penalties: TtPenalties) -> Iterator[ttnn.Tensor]:
        """The pieces in L1, each there until the next is asked for. All at once are few operations: elementwise ones do not
        mind the width."""
        whole = logits[0] if len(logits) == 1 else ttnn.concat(list(logits), dim=-1, memory_config=L1)
        changed = penalties.forward(whole, controls.penalties)
        if len(logits) == 1:
            yield changed
        else:
            _free(whole)
            for first, columns in self.pieces:
                ends = [0, 0, 0, first], [1, 1, MAX_USERS, first + columns]
                piece = ttnn.slice(changed, *ends, memory_config=L1)
                yield piece
                _free(piece)
        _free(changed)

    def _drawn(self, logits: Iterable[ttnn.Tensor], controls: SamplingControls) -> ttnn.Tensor:
        """The token ids [1, 1, 32, CANDIDATES], of which the first column is the choice."""
        best, best_ids = self._best(logits)
        scores = self._scores(best, controls)
        _, place = ttnn.topk(scores, CANDIDATES, dim=-1, stable=True, memory_config=L1)
        chosen = ttnn.gather(best_ids, -1, place, memory_config=L1)
        _free(best_ids, scores, place)
        return chosen

    def _best(self, logits: Iterable[ttnn.Tensor]) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        """The largest logits of the whole vocabulary and their token ids, [1, 1, 32, CANDIDATES] each, the largest first."""
        values, ids = self._candidates(logits)
        values, ids = self._of_all_chips(values), self._of_all_chips(ids)
        if values.shape[-1] > CANDIDATES:
            best, place = ttnn.topk(values, CANDIDATES, dim=-1, stable=True, memory_config=L1)
            best_ids = ttnn.gather(ids, -1, place, memory_config=L1)
            _free(values, ids, place)
            values, ids = best, best_ids
        if self.last is not None:
            held = ttnn.minimum(ids, self.last, memory_config=L1)
            _free(ids)
            ids = held
        return values, ids

    def _write(self, chosen: ttnn.Tensor, tokens: ttnn.Tensor) -> None:
        """The first column [1, 1, 32, CANDIDATES] into tokens. Frees `chosen`."""
        row = ttnn.transpose(chosen, 2, 3, memory_config=L1)
        choice = ttnn.untilize_with_unpadding(row, output_tensor_end=(0, 0, 0, MAX_USERS - 1), memory_config=L1)
        ttnn.copy(choice, tokens)
        _free(chosen, row, choice)

    def _candidates(self, logits: Iterable[ttnn.Tensor]) -> tuple[ttnn.Tensor, ttnn.Tensor]:
        """The pieces' largest logits and their token ids, [1, 1, 32, pieces * CANDIDATES] each.

        Of equal logits the lower token comes first, here and in the merge: `stable` sorts them by place.
        """
        best = []
        for filler, piece in zip(self.fillers, logits, strict=True):
            wide = piece if filler is None else ttnn.concat([piece, filler], dim=-1, memory_config=L1)
            best.append(ttnn.topk(wide, CANDIDATES, dim=-1, stable=True, memory_config=L1))
            if filler is not None:
                _free(wide)
        values, places = (_joined(list(parts)) for parts in zip(*best))
        places32 = ttnn.typecast(places, ttnn.uint32)
        ids = ttnn.add(places32, self.first, memory_config=L1)
        _free(places, places32)
        return values, ids

    def _of_all_chips(self, x: ttnn.Tensor) -> ttnn.Tensor:
        """A chip's columns -> all chips' side by side, on each."""
        if self.chips == 1:
            return x
        whole = ttnn.all_gather(x, dim=3, cluster_axis=1, memory_config=L1)
        _free(x)
        return whole

    def _scores(self, best: ttnn.Tensor, controls: SamplingControls) -> ttnn.Tensor:
        """What the choice is the largest of, [1, 1, 32, CANDIDATES] float32. Frees `best`. See sampling.pick."""
        values = ttnn.typecast(best, ttnn.float32)
        heated = ttnn.mul(values, controls.inverse_temperature)
        scaled = ttnn.add(heated, controls.allowed)
        probabilities = ttnn.softmax(scaled, dim=-1, compute_kernel_config=self.kernel)
        sums = ttnn.cumsum(probabilities, dim=-1)
        before = ttnn.sub(sums, probabilities)
        dropped = ttnn.ge(before, controls.top_p)
        noisy = ttnn.add(scaled, controls.noise)
        scores = ttnn.where(dropped, NEVER, noisy)
        _free(best, values, heated, scaled, probabilities, sums, before, dropped, noisy)
        return scores


def _joined(parts: list[ttnn.Tensor]) -> ttnn.Tensor:
    if len(parts) == 1:
        return parts[0]
    whole = ttnn.concat(parts, dim=-1, memory_config=L1)
    _free(*parts)
    return whole


def _free(*tensors: ttnn.Tensor) -> None:
    for tensor in tensors:
        ttnn.deallocate(tensor)
