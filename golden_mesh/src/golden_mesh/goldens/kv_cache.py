"""Writing keys and values into caches, contiguous and paged, in place.

A paged cache is [blocks, kv heads, block size, dim]. User b's position p is in block page_table[b, p // block
size]. A position of -1 skips the user. A page table entry of -1 skips the block in paged_fill_cache.
"""

from typing import Callable

import numpy as np
import torch

from golden_mesh.arithmetic.product import TILE
from golden_mesh.errors import GoldenError
from golden_mesh.hazards import meet
from golden_mesh.registry import golden


def _positions(update_idxs, update_idxs_tensor) -> np.ndarray:
    return np.array(update_idxs if update_idxs_tensor is None else update_idxs_tensor.flatten(), np.int64)


def _blocks(cache: torch.Tensor, heads: int, length: int, dim: int) -> torch.Tensor:
    """Return the cache with blocks [heads, length, dim] of the same tiles in order. Its own blocks: itself."""
    if cache.shape[1:] == (heads, length, dim):
        return cache
    tiles = cache.unflatten(2, (-1, TILE)).unflatten(4, (-1, TILE)).transpose(3, 4)
    tiles = tiles.reshape(len(cache), heads, length // TILE, dim // TILE, TILE, TILE)
    return tiles.transpose(3, 4).reshape(len(cache), heads, length, dim)


def _places(cache, positions: np.ndarray, page_table, modulo, op: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the users that write a position, and the block of each in the cache and the place in the block."""
    length = cache.shape[2]
    users = (positions != -1).nonzero()[0]
    positions = positions[users] % modulo if modulo else positions[users]
    entry, inside = positions // length, positions % length
    width = 1 if page_table is None else page_table.shape[-1]
    outside = (entry < 0) | (entry >= width)
    if outside.any():
        at = outside.argmax()
        raise GoldenError(f"user {users[at]} writes position {positions[at]}, outside of its cache")
    entry = users if page_table is None else page_table.numpy()[users, entry].astype(np.int64)
    missing = (entry < 0) | (entry >= len(cache))
    if missing.any():
        at = missing.argmax()
        where = f"position {positions[at]} lies in block {entry[at]}"
        raise GoldenError(f"user {users[at]}'s {where}; the cache has {len(cache)}")
    _check_tiles(entry * -(-length // TILE) + inside // TILE, users, op)
    return users, entry, inside


def _check_tiles(tiles: np.ndarray, users: np.ndarray, op: str) -> None:
    """Raise HazardError if two users write into one tile of the cache."""
    if len(set(tiles.tolist())) == len(tiles):
        return
    _, first, count = np.unique(tiles, return_index=True, return_counts=True)
    rows = users[tiles == tiles[first[count > 1].min()]].tolist()
    meet("rows of one tile", op, f"rows {rows} of the update go into one tile of 32 positions of the cache")


def _write(cache, rows, places: tuple[np.ndarray, np.ndarray, np.ndarray], store: Callable) -> None:
    """Write rows [1, B, kv heads (or padded to 32), dim] into the cache, one position a user."""
    users, entry, inside = places
    heads, length, dim = cache.shape[1:]
    rows = store(rows[0, :, :heads])
    if len(users) < len(rows):
        rows = rows.index_select(0, torch.from_numpy(users))
    to = ((entry[:, None] * heads + np.arange(heads)) * length + inside[:, None]).ravel()
    # torch's own indexing takes three times as long
    cache.view(-1, dim).index_copy_(0, torch.from_numpy(to), rows.reshape(-1, dim))


@golden("ttnn.experimental.paged_update_cache", writes="cache_tensor", unread=True)
def paged_update_cache(
    cache_tensor, input_tensor, update_idxs, update_idxs_tensor, page_table, cache_position_modulo, share_cache,
    block_size, num_kv_heads, store,
):  # fmt: skip
    """One token a user: cache [blocks or B, kv heads, length, dim], input [1, B, kv heads (padded to 32),
    dim]. block_size and num_kv_heads: of the cache's blocks, as this call sees them.

    GoldenError: share_cache.
    """
    op = "ttnn.experimental.paged_update_cache"
    if share_cache:
        raise GoldenError(f"{op} has no golden for share_cache={share_cache}")
    shape = (num_kv_heads or cache_tensor.shape[1], block_size or cache_tensor.shape[2], input_tensor.shape[-1])
    seen = _blocks(cache_tensor, *shape)
    positions = _positions(update_idxs, update_idxs_tensor)[: input_tensor.shape[1]]
    _write(seen, input_tensor, _places(seen, positions, page_table, cache_position_modulo, op), store)
    if seen is not cache_tensor:
        cache_tensor.copy_(_blocks(seen, *cache_tensor.shape[1:]))


@golden("ttnn.experimental.paged_fused_update_cache", writes="cache_tensor1 cache_tensor2", unread=True)
def paged_fused_update_cache(
    cache_tensor1, input_tensor1, cache_tensor2, input_tensor2, update_idxs, update_idxs_tensor, page_table, store
):
    """paged_update_cache of keys and values in one op."""
    positions = _positions(update_idxs, update_idxs_tensor)[: input_tensor1.shape[1]]
    op = "ttnn.experimental.paged_fused_update_cache"
    places = _places(cache_tensor1, positions, page_table, None, op)
    _write(cache_tensor1, input_tensor1, places, store)
    if cache_tensor2.shape != cache_tensor1.shape:
        places = _places(cache_tensor2, positions, page_table, None, op)
    _write(cache_tensor2, input_tensor2, places, lambda rows: store(rows, "cache_tensor2"))


@golden("ttnn.experimental.paged_fill_cache", writes="cache_tensor", unread=True)
def paged_fill_cache(cache_tensor, input_tensor, page_table, batch_idx_tensor, batch_idx, block_size, store):
    """Write prompts' keys [users, kv heads, S, dim] into the blocks that each user's page table row names.

    block_size: of the cache's blocks, as this call sees them. Their heads and dim are the input's.

    A chip copies whole tiles: rows beyond S in the last tile are undefined. Here they stay unchanged.
    """
    users = [batch_idx] if batch_idx_tensor is None else batch_idx_tensor.reshape(-1).tolist()
    size = block_size or cache_tensor.shape[2]
    seen = _blocks(cache_tensor, input_tensor.shape[1], size, input_tensor.shape[3])
    for user, rows in zip(users, input_tensor, strict=True):
        blocks = page_table[user].tolist()
        if rows.shape[1] > len(blocks) * size:
            raise GoldenError(f"user {user} fills {rows.shape[1]} positions; its page table has {len(blocks)} x {size}")
        for block, part in zip(blocks, store(rows).split(size, 1)):
            if block == -1:
                continue
            if not 0 <= block < len(cache_tensor):
                raise GoldenError(f"user {user} fills block {block}; the cache has {len(cache_tensor)}")
            seen[block, :, : part.shape[1]] = part
    if seen is not cache_tensor:
        cache_tensor.copy_(_blocks(seen, *cache_tensor.shape[1:]))


@golden("ttnn.update_cache", "ttnn.kv_cache.update_cache_for_token_", writes="cache", unread=True)
def update_cache(cache, input, update_idx, update_index, batch_offset, store):
    """One position of all users: cache [B, kv heads, length, dim], input [1, kv heads, B (padded to 32), dim]."""
    position = update_index if update_idx is None else update_idx
    cache[:, :, position] = store(input[0].transpose(0, 1)[batch_offset : batch_offset + len(cache)])


@golden("ttnn.fill_cache", writes="cache_tensor", unread=True)
def fill_cache(cache_tensor, input_tensor, batch_idx, update_idx, store):
    """A prompt of one user: cache [B, kv heads, length, dim], input [1, kv heads, S, dim]."""
    end = update_idx + input_tensor.shape[2]
    cache_tensor[batch_idx, :, update_idx:end] = store(input_tensor[0])


@golden("ttnn.kv_cache.fill_cache_for_user_", writes="cache", unread=True)
def fill_cache_for_user_(cache, input, batch_index, update_idx, store):
    fill_cache(cache, input, batch_index, update_idx, store)


@golden("ttnn.experimental.indexed_fused_update_cache", writes="cache_tensor1 cache_tensor2")
def indexed_fused_update_cache(
    cache_tensor1, input_tensor1, cache_tensor2, input_tensor2, physical_update_idxs_tensor, store
):
    """Write rows in a prompt's order, [1, kv heads, rows, dim], into caches [blocks, kv heads, block size, dim].

    Row r goes to place idxs[r], counted from the cache's start. A place outside of the cache is skipped.
    """
    size = cache_tensor1.shape[2]
    places = physical_update_idxs_tensor.reshape(-1).long()[: input_tensor1.shape[2]]
    rows = ((places >= 0) & (places < len(cache_tensor1) * size)).nonzero().flatten()
    block, inside = places[rows] // size, places[rows] % size
    cache_tensor1[block, :, inside] = store(input_tensor1)[0, :, rows].transpose(0, 1)
    cache_tensor2[block, :, inside] = store(input_tensor2, "cache_tensor2")[0, :, rows].transpose(0, 1)
