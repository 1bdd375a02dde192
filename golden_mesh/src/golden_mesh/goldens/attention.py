"""Scaled dot product attention over whole prompts, and over chunks of them with a paged cache.

Queries may have more heads than keys and values: query head h reads key head h // (heads / kv heads).
"""

from functools import reduce

import numpy as np
import torch
import torch.nn.functional as F

from golden_mesh.arithmetic import engine, flash, special
from golden_mesh.arithmetic.kernel import Kernel
from golden_mesh.arithmetic.packer import pack
from golden_mesh.arithmetic.product import TILE, multiply, product, sums_of_rows
from golden_mesh.arithmetic.vector import inverse
from golden_mesh.errors import GoldenError
from golden_mesh.goldens.eltwise_binary import compute
from golden_mesh.hazards import meet
from golden_mesh.registry import golden

CHUNK = 32  # queries and keys of a chunk without a program config
HIDES = -1e4  # a score that hides its key, whatever the scale


@golden("ttnn.transformer.scaled_dot_product_attention", stacks="input_tensor_q input_tensor_k input_tensor_v")
def scaled_dot_product_attention(
    input_tensor_q, input_tensor_k, input_tensor_v, attn_mask, is_causal, scale, sliding_window_size=None, *,
    program_config, compute_kernel_config, attention_sink=None, cu_window_seqlens=None, output_concat_heads=False,
    paddings, dtypes=None,
):  # fmt: skip
    """Attention of q [B, heads, S, dim] to k and v [B, kv heads, S, dim] -> [B, heads, S, dim].

    - With output_concat_heads the result is [B, 1, S, heads * dim].
    - attn_mask is [B or 1, heads or 1, S, S]. The kernel scales scores and mask, so the library divides the mask first.
    - cu_window_seqlens [windows + 1]: a row attends to the rows of its own window. Windows may be empty.
    - sliding_window_size W: causal, a row sees the last W keys up to its own. Else it sees W // 2 keys on each side.
    - attention_sink [1, heads, 1, 1]: a score without a value, which takes part of the weight. `scale` multiplies it.
    """
    attn_mask = whole_mask("scaled_dot_product_attention", attn_mask, paddings)
    attend = Attention(program_config, compute_kernel_config, scale, input_tensor_q.shape[-1])
    if attn_mask is not None and dtypes and attend.scale != 1:  # not for latents, which have no dtypes here
        dtype = dtypes["attn_mask"]
        attn_mask = pack(compute(torch.mul, attn_mask, 1 / attend.scale, dtype, {"attn_mask": dtype}), dtype)
    windows = None if cu_window_seqlens is None else _windows(cu_window_seqlens.tolist(), input_tensor_q.shape[-2])
    start = 0 if is_causal else None
    tensors = (x.flatten(0, -4) for x in (input_tensor_q, input_tensor_k, input_tensor_v))
    y = attend(*tensors, start=start, mask=attn_mask, windows=windows, sliding=sliding_window_size, sink=attention_sink)
    y = y.unflatten(0, input_tensor_q.shape[:-3])
    return y.transpose(-3, -2).flatten(-2).unsqueeze(-3) if output_concat_heads else y


def whole_mask(
    op: str, mask: torch.Tensor | None, paddings: dict | None, columns: int | None = None
) -> torch.Tensor | None:
    """The mask as the kernels read it: whole tiles, whose padding is added to scores.

    paddings: the values in the padding of the op's tensors; None: the op has checked the mask. columns: of the keys.
    HazardError: the padding does not hide the keys that lie there.
    """
    if mask is None or paddings is None:
        return mask
    op, value = f"ttnn.transformer.{op}", paddings["attn_mask"]
    tiles = -(-mask.shape[-1] // TILE) * TILE
    if columns is not None and tiles != columns:
        what = f"attn_mask {list(mask.shape)}, the page table has {columns} tokens"
        meet("mask of another length than the page table", op, what)
    if tiles != mask.shape[-1] and (value is None or value > HIDES):
        what = f"attn_mask {list(mask.shape)}, padding {'unknown' if value is None else value}"
        meet("padding of an attention mask", op, what)
    return F.pad(mask, (0, tiles - mask.shape[-1]), value=value or 0)


def _windows(bounds: list[int], rows: int) -> torch.Tensor:
    """The window's number of each row, [rows]."""
    if bounds[0] != 0 or bounds[-1] != rows or sorted(bounds) != bounds:
        raise GoldenError(f"cu_window_seqlens must ascend from 0 to the {rows} rows of q, got {bounds}")
    lengths = torch.tensor(bounds).diff()
    return torch.repeat_interleave(torch.arange(len(lengths)), lengths)


def _nothing(chunk: list[torch.Tensor], rows: int) -> list[torch.Tensor]:
    """The state of `rows` rows that have seen no key, of the shape of a chunk's."""
    values = -torch.inf, 0.0, 0.0
    return [torch.full((*x.shape[:-2], rows, x.shape[-1]), value) for x, value in zip(chunk, values)]


@golden(
    "ttnn.transformer.chunked_scaled_dot_product_attention",
    stacks="input_tensor_q",
    lists="input_tensor_k input_tensor_v",
)
def chunked_scaled_dot_product_attention(
    input_tensor_q, input_tensor_k, input_tensor_v, page_table_tensor, chunk_start_idx, chunk_start_idx_tensor=None, *,
    scale, program_config, compute_kernel_config, sliding_window_size=None, attention_sink=None,
):  # fmt: skip
    """Causal. q [B, heads, C, dim] at positions chunk_start_idx on, cache [blocks, kv heads, size, dim]."""
    start = int(chunk_start_idx_tensor.reshape(-1)[0]) if chunk_start_idx is None else chunk_start_idx
    attend = Attention(program_config, compute_kernel_config, scale, input_tensor_q.shape[-1])
    for of, chunk in (("queries", attend.queries), ("keys", attend.keys)):
        if start % chunk:
            what = f"chunk_start_idx_tensor holds {start}, {of[0]}_chunk_size is {chunk}"
            op = "ttnn.transformer.chunked_scaled_dot_product_attention"
            meet(f"chunk start between chunks of {of}", op, what)
    users, _, rows, _ = input_tensor_q.shape[-4:]
    length = start + rows
    caches = list(map(of_chips, (input_tensor_k, input_tensor_v)))
    blocks = blocks_of(page_table_tensor.numpy(), np.full(users, length), caches[0][0])
    k, v = (torch.cat([gathered(cache, blocks) for cache in each]) for each in caches)
    k, v = (x.transpose(1, 2).flatten(2, 3)[:, :, :length] for x in (k, v))
    y = attend(input_tensor_q.flatten(0, -4), k, v, start=start, sliding=sliding_window_size, sink=attention_sink)
    return y.unflatten(0, input_tensor_q.shape[:-3])


def of_chips(tensor: torch.Tensor | list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors of a golden's parameter of `lists` (registry.py), also where there is one chip's alone."""
    return tensor if isinstance(tensor, list) else [tensor]


def blocks_of(page_table: np.ndarray, lengths: np.ndarray, cache: torch.Tensor) -> np.ndarray:
    """The blocks that hold each user's first positions, [B, most], of a cache [blocks, kv heads, size, dim].

    Entries behind a user's last block are 0. GoldenError: the cache lacks a block.
    """
    size = cache.shape[2]
    most = -(-int(lengths.max()) // size)
    blocks = page_table[: len(lengths), :most].astype(np.int64)
    needed = np.arange(blocks.shape[1]) * size < lengths[:, None]
    missing = needed & ((blocks < 0) | (blocks >= len(cache)))
    if most > blocks.shape[1] or missing.any():
        raise GoldenError(
            f"attention to {lengths.max()} positions in blocks {np.unique(blocks[needed]).tolist()}: the page table "
            f"has {page_table.shape[1]} blocks a user, the cache {len(cache)} blocks of {size} positions"
        )
    return np.where(needed, blocks, 0)


def gathered(cache: torch.Tensor, blocks: np.ndarray) -> torch.Tensor:
    """cache[blocks]. torch's own indexing takes ten times as long for bfloat16."""
    return cache.index_select(0, torch.from_numpy(blocks.ravel())).unflatten(0, blocks.shape)


class Attention:
    """The prefill kernel. It takes the chunks of keys in order. For each chunk it takes all queries that see
    a key of the chunk.

    With a float32 dest, scores, weights and their sums stay float32. The largest scores are cut to bfloat16.
    Results are packed to bfloat16 after every chunk.
    """

    def __init__(self, program_config, compute_kernel_config, scale: float | None, dim: int, *, joint: bool = False):
        """joint: the kernel of two sequences. It packs scores, weights and sums to bfloat16 with any dest."""
        self.kernel = Kernel.of(compute_kernel_config, "HiFi2", approximate=True)
        self.short = flash.exp_is_approximate(program_config)
        # With a bfloat16 dest another kernel computes one sequence's weights, always with the approximate exp.
        self.approximate = self.short or not (self.kernel.wide or joint)
        self.scale = dim**-0.5 if scale is None else scale
        self.in_float32 = self.kernel.wide and not joint  # what lies in L1
        self.packed = engine.to_bfloat16 if self.kernel.wide and joint else lambda x: x
        self.queries, self.keys = (
            (CHUNK, CHUNK) if program_config is None else (program_config.q_chunk_size, program_config.k_chunk_size)
        )

    def __call__(self, q, k, v, *, start: int | None, mask=None, windows=None, sliding=None, sink=None) -> torch.Tensor:
        """start: position of the first query among the keys; None: every query sees every key.

        windows: the window's number of each query and key, [rows]; None: one window.
        """
        batch, heads, rows, dim = q.shape
        length = k.shape[2]
        k, v = (F.pad(x, (0, 0, 0, -length % self.keys)).unsqueeze(2) for x in (k, v))  # [B, kv heads, 1, L, dim]
        q = q.unflatten(1, (k.shape[1], -1))  # [B, kv heads, heads a kv head, rows, dim]
        q = engine.source_b(q, self.kernel) if self.kernel.wide else q
        if mask is not None:
            mask = mask.repeat(batch // len(mask), 1, 1, 1)  # batch: of stacked chips, too
            masks = mask.expand(-1, heads, -1, -1).unflatten(1, (k.shape[1], -1))
        state = None
        for at in range(0, length, self.keys):
            first = 0 if start is None else max(0, at - start) // self.queries * self.queries  # earlier rows see no key
            if first >= rows:
                break
            end = rows  # later rows, of later windows, have seen no key either
            if windows is not None:
                end = int((windows <= windows[min(at + self.keys, length) - 1]).sum())
            scores = self.packed(self._scores(q[..., first:end, :], k[..., at : at + self.keys, :]))
            if mask is not None:
                part = masks[..., first:end, at : at + self.keys]
                seen = scores[..., : part.shape[-1]]
                wide = self.kernel.wide  # else the packer adds in L1
                seen.copy_(engine.add_in_dest(seen, part, self.kernel) if wide else engine.to_nearest_even(seen + part))
            hidden = self._hidden(first, end, rows, at, length, start, windows, sliding)
            if hidden is not None:  # the packer adds to bfloat16
                scores = flash.hide(scores, hidden, 0.0 if self.kernel.wide else torch.nan)
            chunk = self._chunk(scores, v[..., at : at + self.keys, :], state and [x[..., first:end, :] for x in state])
            if end - first == rows:
                state = chunk
                continue
            state = state or _nothing(chunk, rows)
            for held, part in zip(state, chunk):
                held[..., first:end, :] = part
        largest, total, result = state
        total = self.packed(sums_of_rows(total, self.kernel))
        if sink is not None:
            sink = sink.float().reshape(1, q.shape[1], q.shape[2], 1, 1)
            if self.kernel.wide:
                result, total = flash.with_sink(
                    result, total, largest, sink, self._weights, self.scale, self.kernel, self.short
                )
            else:  # in dest, and the largest score stays
                weight = flash.correction(sink, largest, self.scale, self.kernel, self.short)
                total = engine.keep(total + weight, engine.BFLOAT16)
        factor = 1 / engine.keep(total, engine.SRC_B) if self.kernel.wide else inverse(total, self.kernel.approximate)
        return multiply(result, self.packed(factor), self.kernel).flatten(1, 2)

    def _scores(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """[B, kv heads, group, rows, chunk], float32"""
        group, rows = q.shape[2:4]
        k = k[:, :, 0].transpose(-1, -2)
        scores = product(q.flatten(2, 3), k, self.kernel, bits=engine.SRC_B_FIRST, block=-(-q.shape[-1] // TILE))
        return scores.unflatten(2, (group, rows))

    def _weights(self, scores: torch.Tensor, largest: torch.Tensor) -> torch.Tensor:
        return self.packed(flash.weights(scores, largest, self.scale, self.kernel, self.approximate))

    def _hidden(self, first: int, end: int, rows: int, at: int, length: int, start, windows, sliding):
        """The keys of the chunk at `at` that are hidden from queries, [end - first or 1, chunk]; None: none is."""
        keys, causal = torch.arange(at, at + self.keys), start is not None
        queries = torch.arange(first, end)[:, None] + (start if causal else length - rows)
        found = []
        if at + self.keys > (start + first + 1 if causal else length):
            found.append(keys > queries if causal else (keys >= length)[None])
        if sliding is not None:
            found.append(keys <= queries - sliding if causal else (keys - queries).abs() > sliding // 2)
        if windows is not None:
            found.append(F.pad(windows, (0, self.keys), value=-1)[at : at + self.keys] != windows[first:end, None])
        return reduce(torch.logical_or, found) if found else None

    def _chunk(self, scores, v, state):
        """(largest score, sums of weights by column of a tile, weights @ v) with this chunk and all before."""
        kernel = self.kernel
        largest = engine.keep(special.without_nan(special.largest(scores)), 8)
        if state is not None:
            largest = torch.maximum(largest, state[0])
        weights = self._weights(scores, largest)
        sums, *more = weights.split(TILE, -1)
        for tile in more:  # in L1
            sums = sums + tile if self.in_float32 else engine.to_nearest_even(sums + tile)
        group, rows = weights.shape[2:4]
        bits = flash.BITS if self.approximate else engine.FLOAT32
        result = product(weights.flatten(2, 3), v[:, :, 0], kernel, bits=bits, block=self.keys // TILE)
        result = engine.to_bfloat16_(result.contiguous()).unflatten(2, (group, rows))
        if state is not None:
            factor = flash.correction(state[0], largest, self.scale, kernel, self.short)
            sums = self.packed(engine.add_in_dest(sums, self.packed(multiply(state[1], factor, kernel)), kernel))
            result = engine.to_nearest_even(result.add_(flash.times(state[2], factor, kernel)))
        return largest, sums, result
