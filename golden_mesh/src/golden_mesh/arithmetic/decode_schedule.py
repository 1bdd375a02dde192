"""How decode attention divides a user's chunks of keys among cores, and how the cores combine their results."""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Schedule:
    """The chunks of keys of all users, by user, core and turn. A user's cores may have unequal turns, or none."""

    shape: tuple[int, int, int]  # users, cores, turns
    users: torch.Tensor  # [chunks]
    chunks: torch.Tensor  # [chunks], the number of each among its user's
    places: torch.Tensor | None  # [chunks], the place of each in `shape`; None: a chunk for each place
    idle: int  # cores, the first ones, without a chunk of any user

    def spread(self, x: torch.Tensor, nothing: float) -> torch.Tensor:
        """[chunks, ...] -> [users, cores, turns, ...], `nothing` in turns without a chunk"""
        if self.places is not None:
            x = x.new_full((math.prod(self.shape), *x.shape[1:]), nothing).index_copy_(0, self.places, x)
        return x.unflatten(0, self.shape)

    def gathered(self, x: torch.Tensor) -> torch.Tensor:
        """[users, cores, turns, ...] -> [chunks, ...]"""
        return x.flatten(0, 2) if self.places is None else x.flatten(0, 2).index_select(0, self.places)

    def of_users(self, x: torch.Tensor) -> torch.Tensor:
        """[users, chunks, ...] -> [chunks, ...]"""
        if self.shape[1] == 1:  # blocks may hold chunks behind the longest user's end
            return x[:, : self.shape[2]].flatten(0, 1)
        return x[self.users, self.chunks]


def in_chunks(x: torch.Tensor, chunk: int) -> torch.Tensor:
    """[B, kv heads, length, dim] -> [B, chunks, kv heads, chunk, dim], zeros behind the end"""
    return F.pad(x, (0, 0, 0, -x.shape[2] % chunk)).unflatten(2, (-1, chunk)).transpose(1, 2)


@lru_cache(64)
def schedule(counts: tuple[int, ...], cores: int) -> Schedule:
    """Divide users with these counts of chunks among the cores of each. A single core may get chunks behind a user's
    end.

    The last core has a user's last chunks, and combines all results. With fewer chunks than cores
    the first cores have none.
    """
    core, chunks = torch.arange(cores), torch.tensor(counts)[:, None]
    if cores == 1:
        chunks = chunks.amax().expand(chunks.shape)
    each, rest = chunks // cores, chunks % cores
    first = core * each + torch.minimum(rest, core)
    count = each + (core < rest)
    few = chunks < cores
    first = torch.where(few, core - (cores - chunks), first)
    count = torch.where(few, (first >= 0).long(), count)
    turn = torch.arange(int(count.max()))
    taken = (turn < count[..., None]).flatten()
    places = taken.nonzero().flatten()
    return Schedule(
        shape=(len(counts), cores, len(turn)),
        users=places // (cores * len(turn)),
        chunks=(first[..., None] + turn).flatten()[places],
        places=None if taken.all() else places,
        idle=int((count.amax(0) == 0).sum()),
    )


@lru_cache(64)
def reduction_tree(cores: int, idle: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Rounds of pairs (into, other): in a round, core `into` adds the result of core `other` to its
    own. Pairs with an `other` among the first `idle` cores are left out.

    In round r, cores with numbers that end in r + 1 binary ones take from the core 2**r below. If the number of cores
    is no power of two, the last core takes the remaining results, in rounds in which it is free.
    """
    rounds = []
    for r in range((cores - 1).bit_length()):
        ones = (2 << r) - 1
        rounds.append([(core, core - (1 << r)) for core in range(cores) if core & ones == ones])
    last = cores - 1
    for core in range(last - 1, -1, -1):
        r = (~core & (core + 1)).bit_length() - 1  # trailing ones of the number
        if core + (1 << r) > last and all(into != last for into, _ in rounds[r]):
            rounds[r].append((last, core))
    busy = ([pair for pair in pairs if pair[1] >= idle] for pairs in rounds)
    return [tuple(torch.tensor(side) for side in zip(*pairs)) for pairs in busy if pairs]
