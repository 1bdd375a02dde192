"""Attention of one query a user, over a contiguous or a paged cache.

A user's keys come in chunks. Each core of a head takes its chunks one after another. Then the cores combine
their results in pairs. Steps pass bfloat16 to each other. A user's result does not depend on the other users:
the sums of each user have the shape and order that they have alone.
"""

import math
from functools import partial
from importlib.metadata import version

import numpy as np
import torch
import torch.nn.functional as F
import ttnn

from golden_mesh.arithmetic import engine, flash, special
from golden_mesh.arithmetic.decode_schedule import Schedule, in_chunks, reduction_tree, schedule
from golden_mesh.arithmetic.kernel import Kernel
from golden_mesh.arithmetic.product import ROWS, TILE, product, sums_of_rows
from golden_mesh.arithmetic.vector import inverse
from golden_mesh.errors import GoldenError
from golden_mesh.goldens.attention import blocks_of, of_chips, whole_mask
from golden_mesh.hazards import meet
from golden_mesh.registry import golden
from golden_mesh.versions import numbers

POSITIONS_AT_A_TIME = 1 << 16  # positions widened to float32 together: 64 MiB for a KV head of 128
GRID = 64  # cores of a chip without a program config
JOINS_FIVE_TILES = numbers(version("ttnn")) < (0, 81)  # of dest, to join two cores' results
_NO_KEYS = torch.finfo(torch.float32).min
HALF_TILE = 16  # up to so many heads the kernel computes half tiles, with an approximate exp


@golden("ttnn.transformer.scaled_dot_product_attention_decode")
def scaled_dot_product_attention_decode(
    input_tensor_q, input_tensor_k, input_tensor_v, is_causal, attn_mask, cur_pos, cur_pos_tensor, attention_sink=None,
    *, scale, sliding_window_size=None, program_config, compute_kernel_config, dtypes, out, paddings,
):  # fmt: skip
    """q [1, B, heads, dim], k and v [B, kv heads, length, dim] -> [1, B, heads, dim]"""
    attn_mask = whole_mask("scaled_dot_product_attention_decode", attn_mask, paddings)
    capacity = input_tensor_k.shape[2]
    positions = torch.tensor(list(cur_pos)) if cur_pos_tensor is None else cur_pos_tensor.reshape(-1)
    lengths = _lengths(input_tensor_q, positions, is_causal, capacity)
    if lengths.max() > capacity:
        raise GoldenError(f"attention to {lengths.max()} positions of a cache that has {capacity} a user")

    def keys_and_values(users, chunk, order):
        longest, rows = lengths[users].max(), torch.from_numpy(users)
        caches = (cache[rows, :, :longest] for cache in (input_tensor_k, input_tensor_v))
        return (order.of_users(in_chunks(cache, chunk)) for cache in caches)

    how = is_causal, sliding_window_size, scale, program_config, compute_kernel_config, dtypes
    attend = _Decode(input_tensor_q, input_tensor_k, *how)
    # k_chunk_size 0 is none here: the largest power of two that divides the cache's length
    attend.chunk = attend.chunk or min(512, capacity & -capacity)
    return attend(input_tensor_q, keys_and_values, out, lengths, lengths, attn_mask, attention_sink)


@golden(
    "ttnn.transformer.paged_scaled_dot_product_attention_decode",
    stacks="input_tensor_q",
    lists="input_tensor_k input_tensor_v",
)
def paged_scaled_dot_product_attention_decode(
    input_tensor_q, input_tensor_k, input_tensor_v, page_table_tensor, is_causal, attn_mask, cur_pos_tensor,
    attention_sink=None, *, scale, sliding_window_size=None, program_config, compute_kernel_config,
    spec_multi_pos_tiles=0, dtypes, out, paddings,
):  # fmt: skip
    """q [1, B, heads, dim], k and v [blocks, kv heads, size, dim], page table [B, pages] -> [1, B, heads, dim].

    spec_multi_pos_tiles: tokens of a user. Each has a tile of 32 heads and a position: q [1, B, tokens x 32, dim],
    positions [B x tokens]. A user's positions do not decrease. All its tokens read the chunks of its last one.
    """
    caches = list(map(of_chips, (input_tensor_k, input_tensor_v)))
    cache, chips = caches[0][0], len(caches[0])
    capacity = page_table_tensor.shape[-1] * cache.shape[2]
    op = "paged_scaled_dot_product_attention_decode"
    attn_mask = whole_mask(op, attn_mask, paddings, capacity)
    positions = None if cur_pos_tensor is None else cur_pos_tensor.reshape(-1)
    tokens, tables = spec_multi_pos_tiles or 1, page_table_tensor
    q = input_tensor_q.reshape(chips, *input_tensor_q.shape[-3:])
    if spec_multi_pos_tiles:  # from here on each token is a user
        q = q.reshape(chips, q.shape[1] * tokens, TILE, q.shape[3])
        tables = tables.repeat_interleave(tokens, 0)
    tables = tables.numpy()
    lengths = _lengths(q, positions, is_causal, capacity)
    read = _lengths_read(lengths, tokens)

    def keys_and_values(users, chunk, order):
        blocks = blocks_of(tables[users], read[users], cache)
        _check_last_chunks(tables[users], read[users], chunk, cache, users)
        units = _units_of_chunks(cache, blocks, chunk, order)
        return (torch.cat([_chunks(of_chip, units, chunk) for of_chip in each], 1) for each in caches)

    how = is_causal, sliding_window_size, scale, program_config, compute_kernel_config, dtypes
    attend = _Decode(input_tensor_q, cache, *how)
    if program_config is None:  # ttnn's own: 32 keys at a time, one core for each head
        attend.chunk, attend.cores = 32, 1
    heads, sink = q.shape[2], attention_sink
    if chips > 1 and attn_mask is not None:  # their heads are computed as one chip's
        attn_mask = attn_mask[:, :, :heads].repeat(1, 1, chips, 1)
    if chips > 1 and sink is not None:
        sink = _of_heads(sink, heads).repeat(chips)
    y = attend(q.transpose(0, 1).flatten(1, 2)[None], keys_and_values, out, lengths, read, attn_mask, sink)
    return y[0].unflatten(1, (chips, heads)).transpose(0, 1).reshape(*input_tensor_q.shape[:-3], *out.shape[-3:])


def _units_of_chunks(cache: torch.Tensor, blocks: np.ndarray, chunk: int, order: Schedule) -> np.ndarray:
    """Return where chunks of users' blocks [B, blocks] lie in a cache, [chunks, kv heads, units of a chunk].

    A unit is the keys that lie together in blocks and chunks. The first one fills a last chunk.
    """
    heads, size = cache.shape[1:3]
    unit = math.gcd(chunk, size)
    a_block, a_chunk = size // unit, chunk // unit
    units = ((blocks * heads * a_block)[:, :, None] + np.arange(a_block)).reshape(len(blocks), -1)
    at = order.chunks.numpy()[:, None] * a_chunk + np.arange(a_chunk)
    within = at < units.shape[1]
    units = np.where(within, units[order.users.numpy()[:, None], np.where(within, at, 0)], 0)
    return units[:, None] + np.arange(heads)[:, None] * a_block


def _chunks(cache: torch.Tensor, units: np.ndarray, chunk: int) -> torch.Tensor:
    """[chunks, kv heads, chunk, dim]. torch's own indexing takes ten times as long for bfloat16."""
    unit, dim = chunk // units.shape[2], cache.shape[3]
    values = cache.reshape(-1, unit, dim).index_select(0, torch.from_numpy(units.ravel()))
    return values.view(*units.shape[:2], chunk, dim)


def _lengths_read(lengths: np.ndarray, tokens: int) -> np.ndarray:
    """The number of positions that are read for each token: those of its user's last one."""
    if tokens == 1:
        return lengths
    of_users = lengths.reshape(-1, tokens)
    if (np.diff(of_users) < 0).any() or ((of_users[:, 0] == 0) & (of_users[:, -1] > 0)).any():
        raise GoldenError(f"positions of a user's {tokens} tokens decrease: {of_users - 1}")
    return of_users[:, -1].repeat(tokens)


def _check_last_chunks(page_table: np.ndarray, lengths: np.ndarray, chunk: int, cache, users) -> None:
    """Raise HazardError if a user's last chunk of keys includes a page table entry that is no block."""
    size, op = cache.shape[2], "ttnn.transformer.paged_scaled_dot_product_attention_decode"
    if chunk <= size:
        return
    tokens = -(-lengths // chunk) * chunk
    if tokens.max() > page_table.shape[1] * size:
        end = page_table.shape[1] * size
        what = f"the last chunk of {chunk} keys ends at {tokens.max()}, the page table at {end}"
        meet("chunk of keys beyond the page table", op, what)
    read = np.arange(page_table.shape[1]) * size < tokens[:, None]
    missing = read & ((page_table < 0) | (page_table >= len(cache)))
    if missing.any():
        row, entry = np.argwhere(missing)[0]
        at = lengths[row] - 1
        what = f"user {users[row]} at position {at} reads chunks of {chunk} keys, and entry {entry}"
        meet("chunk of keys with a missing block", op, f"{what} of its page table is {page_table[row, entry]}")


def _lengths(q, positions, is_causal: bool, capacity: int) -> np.ndarray:
    """The number of positions that each user sees: up to its own, or all if not causal. 0: a skipped user."""
    users = q.shape[1]
    return positions[:users].long().numpy() + 1 if is_causal else np.full(users, capacity)


class _Decode:
    def __init__(self, q, k, is_causal: bool, window: int | None, scale, program_config, compute_kernel_config, dtypes):
        """window: the last positions that are seen; None: all."""
        if window is not None and not is_causal:
            raise GoldenError("decode attention with sliding_window_size and is_causal=False has no golden")
        self.window = window
        users, heads, dim = q.shape[-3:]
        config, cores, most = compute_kernel_config, GRID, GRID
        self.kernel = Kernel.of(config, "HiFi2", approximate=True)
        self.scale = dim**-0.5 if scale is None else scale
        self.short = flash.exp_is_approximate(program_config)  # the exp between two turns of a core
        half_tiles = is_causal and heads <= HALF_TILE and dtypes["input_tensor_q"] == ttnn.bfloat16
        self.approximate = half_tiles or self.short  # the weights' exp
        self.chunk = 0  # keys of a chunk; 0: by each user's position
        if program_config is not None:
            grid, self.chunk = program_config.compute_with_storage_grid_size, program_config.k_chunk_size
            cores, most = grid.x * grid.y, program_config.max_cores_per_head_batch
        self.cores = max(1, min(cores, most * users * k.shape[1]) // users // k.shape[1])  # of a user's KV head
        self.small_dest = config is not None and config.fp32_dest_acc_en and not config.dst_full_sync_en  # 4 tiles

    def __call__(self, q, keys_and_values, out, lengths, read, mask, sink) -> torch.Tensor:
        """keys_and_values(users, chunk, order): the chunks of a schedule, [chunks, kv heads, chunk, dim] each.

        - lengths [B]: positions up to the query's own. read [B]: positions whose keys are read, at least lengths.
        - sink: a score without a value a head: the first column of [heads, 32], or [heads].

        A user at position -1 is skipped. Its output is zeros here, and undefined on a chip.
        """
        heads, seen = q.shape[2], torch.from_numpy(lengths)
        mask = None if mask is None else _of_users(mask, q.shape[1])
        sink = None if sink is None else _of_heads(sink, heads)
        result = torch.zeros(1, *q.shape[1:3], out.shape[3])
        for chunk, users in self._by_chunk(read):
            self._check(chunk, lengths[users])
            step = max(1, POSITIONS_AT_A_TIME // read[users].max())
            for some in (users[at : at + step] for at in range(0, len(users), step)):
                order = schedule(tuple((-(-read[some] // chunk)).tolist()), self.cores)
                k, v = keys_and_values(some, chunk, order)
                rows = torch.from_numpy(some)
                # torch's own indexing takes ten times as long
                queries, ends = (x.index_select(0, rows) for x in (q[0], seen))
                masks = None if mask is None else mask[rows, :heads]
                result[0, :, :heads].index_copy_(0, rows, self._attend(queries, k, v, ends, order, masks, sink))
        return result

    def _check(self, chunk: int, lengths: torch.Tensor) -> None:
        """Raise HazardError where the kernel forgets to hide keys, or joins two cores' results wrongly."""
        op, last, window = "ttnn.transformer.scaled_dot_product_attention_decode", lengths - 1, self.window
        if self.chunk == 0 and window is not None:
            first = lengths - window
            within = (first > 0) & (first // chunk == last // chunk) & (lengths % chunk > 0)
            if within.any():
                what = f"position {last[within][0]}, a window of {window}, and a chunk of {chunk} keys holds all of it"
                meet("sliding window within a dynamic chunk", f"ttnn.transformer.paged_{op[17:]}", what)
        if JOINS_FIVE_TILES and self.small_dest and self.cores > 1 and last.max() >= chunk:
            what = f"position {last.max()}, chunks of {chunk} keys on {self.cores} cores"
            meet("float32 dest of several cores a KV head", op, what)

    def _by_chunk(self, lengths: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """Pairs (keys of a chunk, users) for all users that are not skipped.

        Without a fixed chunk, a user's chunk is the least power of two of tiles that holds all of its keys.
        It has at most 4 tiles with a float32 dest, else 8.
        """
        active = lengths.nonzero()[0]
        if self.chunk != 0:
            return [(self.chunk, active)] if len(active) else []
        tiles = -(-lengths[active] // TILE)
        sizes = np.array((1, 2, 4) if self.kernel.wide else (1, 2, 4, 8))
        least = (tiles[:, None] > sizes[:-1]).sum(1)
        return [(sizes[i] * TILE, active[least == i]) for i in np.unique(least)]

    def _attend(self, q, k, v, lengths, order: Schedule, mask, sink) -> torch.Tensor:
        """q [B, heads, dim], k and v [chunks, kv heads, chunk, dim], mask [B, heads, longest] -> [B, heads, dim]"""
        kernel, window = self.kernel, self.window
        kv_heads, chunk, dim = k.shape[1:]
        group = q.shape[1] // kv_heads
        queries = F.pad(q.unflatten(1, (kv_heads, group)), (0, 0, 0, -group % ROWS)).index_select(0, order.users)
        scores = product(queries, k.transpose(-1, -2), kernel, block=-(-dim // TILE))
        scores = engine.to_bfloat16_(scores)  # [chunks, kv heads, group, chunk]
        if mask is not None:
            scores[..., :group, :] = engine.add(scores[..., :group, :], _masks(mask, order, kv_heads, chunk))
        seen = (lengths.index_select(0, order.users) - order.chunks * chunk).view(-1, 1, 1, 1)  # of each chunk
        hidden = torch.arange(chunk) >= seen
        if window is not None:
            hidden |= torch.arange(chunk) < seen - window
        scores = flash.hide(scores, hidden)
        largest = order.spread(special.without_nan(special.largest(scores)), -torch.inf).cummax(2).values
        weights = flash.weights(scores, order.gathered(largest), self.scale, kernel, self.approximate)
        weights = engine.to_bfloat16_(weights)
        if window is not None or mask is not None or self.cores > 1:  # else every chunk has a key that is seen
            weights = torch.minimum(weights, torch.where(hidden, 0.0, torch.inf), out=weights)
        sums = sums_of_rows(weights, kernel)
        values = product(weights, v, kernel, bits=engine.BFLOAT16, block=chunk // TILE)
        parts = torch.cat((values, sums), -1)  # the sum is a column more
        state = self._in_turns(order.spread(engine.to_bfloat16_(parts), 0), largest)
        # A core without keys counts below one whose keys are all masked.
        largest = torch.where(state[..., -1:] == 0, _NO_KEYS, largest[:, :, -1])
        state, largest = self._joined(state, largest, order.idle)
        result, total = state[..., :-1], state[..., -1:]
        if sink is not None:
            sink = F.pad(sink.view(1, kv_heads, group, 1), (0, 0, 0, -group % ROWS))
            weight = partial(flash.correction, scale=self.scale, kernel=kernel, approximate=self.short)
            result, total = flash.with_sink(result, total, largest, sink, weight, self.scale, kernel, self.short)
            total = engine.to_bfloat16_(total)
        reciprocal = 1 / total if kernel.wide else inverse(total, kernel.approximate)
        return flash.times(result, engine.to_bfloat16(reciprocal), kernel)[:, :, :group].flatten(1, 2)

    def _in_turns(self, parts: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
        """[B, cores, turns, kv heads, group, dim + 1] -> [B, cores, kv heads, group, dim + 1], turn by turn."""
        state = parts[:, :, 0]
        if parts.shape[2] == 1:
            return state
        factors = flash.correction(largest[:, :, :-1], largest[:, :, 1:], self.scale, self.kernel, self.short)
        for turn in range(1, parts.shape[2]):
            before = flash.times(state, factors[:, :, turn - 1], self.kernel)
            state = engine.add(before, parts[:, :, turn], engine.BFLOAT16)
        return state

    def _joined(self, state: torch.Tensor, largest: torch.Tensor, idle: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Both [B, cores, kv heads, group, dim + 1 or 1] -> [B, kv heads, group, ...], along a tree of pairs.

        The results of idle cores change nothing: times 1, plus 0. LoFi cuts what is multiplied by 1.
        """
        exact = self.kernel.wide and self.kernel.phases > 1
        for into, other in reduction_tree(state.shape[1], idle if exact else 0):
            sides = [(state[:, side], largest[:, side]) for side in (into, other)]
            values, new = flash.joined(sides, self.scale, self.kernel)
            state, largest = state.clone(), largest.clone()
            state[:, into] = values
            largest[:, into] = new
        return state[:, -1], largest[:, -1]


def _of_heads(sink: torch.Tensor, heads: int) -> torch.Tensor:
    """[heads]"""
    return (sink[:, 0] if sink.dim() == 2 else sink.flatten())[:heads].float()


def _of_users(mask: torch.Tensor, users: int) -> torch.Tensor:
    """[B or 1, 1, heads, S] -> [B, heads, S]. The kernel takes a user's mask by dim 0."""
    if len(mask) not in (1, users):
        shape = list(mask.shape)
        raise GoldenError(f"attention of {users} users under a mask {shape}: it wants [{users} or 1, 1, heads, S]")
    return mask.flatten(0, 1)[torch.arange(users) % len(mask)]


def _masks(mask: torch.Tensor, order: Schedule, kv_heads: int, chunk: int) -> torch.Tensor:
    """[B, heads, longest] -> [chunks, kv heads, group, chunk]"""
    mask = F.pad(mask.float(), (0, -mask.shape[-1] % chunk))
    return order.of_users(mask.unflatten(-1, (-1, chunk)).transpose(1, 2)).unflatten(1, (kv_heads, -1))
