"""The paged KV cache as torch sees it: what all chips should hold before and after a step."""
from typing import Sequence

import torch
import ttnn

from models.common.metrics import assert_close, assert_equal
from models.demos.qwen25_7b.tt.kv_cache import BLOCK, PagePlan, TtKVCache
from models.demos.qwen25_7b.weights import to_interleaved
from tests.pcc.bench import Bench
from tests.pcc.reference import KeysValues


class PagedCache:
    """A TtKVCache, its page tables (a random deal of all blocks) and the rows that a test knows of.

    Images are [blocks, tp * kv_heads, 32, head_dim], the chips' KV heads side by side, keys as rotary pairs.
    """

    def __init__(self, bench: Bench, cache: TtKVCache, pages: PagePlan, seed: int = 0):
        self.bench, self.cache = bench, cache
        self.generator = torch.Generator().manual_seed(seed)
        shuffled = torch.randperm(pages.blocks, generator=self.generator)
        owned = shuffled[: pages.users * pages.blocks_per_user].view(pages.users, -1)
        self.page_table = torch.full((pages.users, pages.table_width), int(shuffled[-1]), dtype=torch.int32)
        self.page_table[:, : pages.blocks_per_user] = owned
        self.before = self.expected = ()  # images of keys and of values

    def fill(self, histories: Sequence[KeysValues]) -> None:
        """User u's tokens so far are histories[u]; everywhere else lies noise as loud as K's peaks."""
        blocks, kv_heads, *rest = self.cache.shape
        shape = (blocks, self.bench.plan.tp * kv_heads, *rest)
        images = [100 * torch.randn(shape, generator=self.generator) for _ in "kv"]
        for user, history in enumerate(histories):
            self._write(images, user, 0, history)
        mapper = ttnn.ShardTensorToMesh(self.bench.mesh_device, dim=1)
        for image, tensor in zip(images, (self.cache.keys, self.cache.values), strict=True):
            host = ttnn.from_torch(image, dtype=self.cache.dtype, layout=ttnn.TILE_LAYOUT, mesh_mapper=mapper)
            ttnn.copy_host_to_device_tensor(host, tensor)
        self.before = self._read()

    def assert_wrote(self, rows: Sequence[tuple[int, int, KeysValues]], *, pcc: float) -> None:
        """The step wrote each (user, its first position, keys and values) and not a bit anywhere else."""
        expected = [image.clone() for image in self.before]
        touched = torch.zeros(self.cache.shape[0], BLOCK, dtype=torch.bool)
        for user, start, written in rows:
            touched[self._places(user, start, written)] = True
            self._write(expected, user, start, written)
        for kind, after, before, want in zip("kv", self._read(), self.before, expected, strict=True):
            after, before, want = (image.transpose(1, 2) for image in (after, before, want))  # [blocks, 32, heads, dim]
            assert_equal(after[~touched], before[~touched])
            after, want = after[touched], want[touched]
            assert_close(after, want, pcc=pcc)
            if kind == "k":  # K's peaks are right and drown the rest: every rotary pair must be right by itself
                size = want.unflatten(-1, (-1, 2)).pow(2).mean(dim=(0, -1)).sqrt().repeat_interleave(2, dim=-1)
                assert_close(after / size, want / size, pcc=pcc)

    def _read(self) -> list[torch.Tensor]:
        return [self.bench.get(tensor, dim=1) for tensor in (self.cache.keys, self.cache.values)]

    def _places(self, user: int, start: int, rows: KeysValues) -> tuple[torch.Tensor, torch.Tensor]:
        """Block and row in the block of each token."""
        positions = torch.arange(start, start + rows.keys.shape[1])
        return self.page_table[user, positions // BLOCK].long(), positions % BLOCK

    def _write(self, images: Sequence[torch.Tensor], user: int, start: int, rows: KeysValues) -> None:
        blocks, inside = self._places(user, start, rows)
        heads = [head for chip in self.bench.plan.kv_head_of for head in chip]
        for image, values in zip(images, (to_interleaved(rows.keys), rows.values), strict=True):
            image[blocks, :, inside] = values[heads].transpose(0, 1)
