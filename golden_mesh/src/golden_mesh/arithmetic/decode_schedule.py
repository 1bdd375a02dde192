"""How decode attention divides a user's chunks of keys among cores, and how the cores combine their
results.
"""

import torch
import torch.nn.functional as F


def in_chunks(x: torch.Tensor, chunk: int) -> torch.Tensor:
    """[B, kv heads, length, dim] -> [B, chunks, kv heads, chunk, dim], zeros behind the end"""
    return F.pad(x, (0, 0, 0, -x.shape[2] % chunk)).unflatten(2, (-1, chunk)).transpose(1, 2)


def chunks_by_core(chunks: torch.Tensor, cores: int) -> torch.Tensor:
    """The chunks of each core, [B, cores, turns]; -1: none. A single core may get chunks behind a
    user's end.

    The last core has a user's last chunks, and combines all results. With fewer chunks than cores
    the first cores have none.
    """
    if cores == 1:
        return torch.arange(int(chunks.max())).expand(len(chunks), 1, -1)
    core = torch.arange(cores)
    chunks = chunks[:, None]
    each, rest = chunks // cores, chunks % cores
    first = core * each + torch.minimum(rest, core)
    count = each + (core < rest)
    few = chunks < cores
    first = torch.where(few, core - (cores - chunks), first)
    count = torch.where(few, (first >= 0).long(), count)
    turn = torch.arange(int(count.max()))
    return torch.where(turn < count[..., None], first[..., None] + turn, -1)


def in_order(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """x [B, chunks, ...] in the order [B, cores, turns] of each user -> [B, cores x turns, ...]."""
    if order.shape[1] == 1:
        return x[:, : order.shape[2]]  # blocks may hold chunks behind the longest user's end
    return x[torch.arange(len(x))[:, None], order.flatten(1).clamp(min=0)]


def reduction_tree(cores: int) -> list[list[tuple[int, int]]]:
    """Rounds of pairs (into, other): in a round, core `into` adds the result of core `other` to its
    own.

    In round r, cores with numbers that end in r + 1 binary ones take from the core 2**r below. If
    the number of cores is no power of two, the last core takes the remaining results, in rounds in
    which it is free.
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
    return [pairs for pairs in rounds if pairs]
