"""The paged KV cache as torch sees it: what all chips hold before a step and should hold after it."""
from typing import Sequence

import torch
import ttnn

from models.common.metrics import assert_close, assert_equal
from models.demos.qwen25_7b.config import Recipe
from models.demos.qwen25_7b.tt.kv_cache import BLOCK, PagePlan, TtKVCache
from models.demos.qwen25_7b.weights import to_interleaved
from tests.pcc.bench import Bench
from tests.pcc.reference import KeysValues

CONTEXT = 1024  # tokens that a user's blocks hold


class PagedCache:
    """A layer's cache, and the image of what it should hold; the users' blocks lie all over it.

    Images are [blocks, tp * kv_heads, 32, head_dim], the chips' KV heads side by side, keys as rotary pairs.
    """

    def __init__(self, bench: Bench, recipe: Recipe):
        pages = PagePlan.make(bench.decode.batch, CONTEXT)
        self.bench = bench
        self.on_chips = TtKVCache(bench.mesh_device, bench.config, bench.plan, recipe, bench.decode, pages)
        generator = torch.Generator().manual_seed(0)
        dealt = torch.randperm(pages.blocks, generator=generator)[: pages.users * pages.blocks_per_user]
        self.page_table = dealt.view(pages.users, pages.table_width).int()
        blocks, kv_heads, *rest = self.on_chips.shape
        shape = (blocks, bench.plan.tp * kv_heads, *rest)
        self.noise = [100 * torch.randn(shape, generator=generator) for _ in "kv"]  # as loud as K's peaks

    def fill(self, histories: Sequence[KeysValues]) -> None:
        """User u's tokens so far are histories[u]; everywhere else lies noise."""
        images = [noise.clone() for noise in self.noise]
        for user, history in enumerate(histories):
            self._write(images, user, 0, history)
        mapper = ttnn.ShardTensorToMesh(self.bench.mesh_device, dim=1)
        for image, tensor in zip(images, (self.on_chips.keys, self.on_chips.values), strict=True):
            host = ttnn.from_torch(image, dtype=tensor.dtype, layout=ttnn.TILE_LAYOUT, mesh_mapper=mapper)
            ttnn.copy_host_to_device_tensor(host, tensor)
        self.before = self._read()

    def assert_wrote(self, rows: Sequence[tuple[int, int, KeysValues]], *, pcc: float, each_pair: bool = True) -> None:
        """Since `fill` each (user, first position, keys and values) was written, and not a bit anywhere else.

        each_pair: K's peaks drown the rest; every rotary pair must be right by itself, too.
        """
        expected = [image.clone() for image in self.before]
        touched = torch.zeros(self.on_chips.shape[0], BLOCK, dtype=torch.bool)
        for user, start, written in rows:
            touched[self._places(user, start, written)] = True
            self._write(expected, user, start, written)
        for kind, *images in zip(("keys", "values"), self._read(), self.before, expected, strict=True):
            after, before, want = (image.transpose(1, 2) for image in images)  # [blocks, 32, heads, head_dim]
            assert_equal(after[~touched], before[~touched])
            after, want = after[touched], want[touched]
            assert_close(after, want, pcc=pcc)
            if kind == "keys" and each_pair:
                size = want.unflatten(-1, (-1, 2)).pow(2).mean(dim=(0, -1)).sqrt().repeat_interleave(2, dim=-1)
                assert_close(after / size, want / size, pcc=pcc)

    def _read(self) -> list[torch.Tensor]:
        return [self.bench.get(tensor, dim=1) for tensor in (self.on_chips.keys, self.on_chips.values)]

    def _places(self, user: int, start: int, rows: KeysValues) -> tuple[torch.Tensor, torch.Tensor]:
        """Block and row in the block of each token."""
        positions = torch.arange(start, start + rows.keys.shape[1])
        return self.page_table[user, positions // BLOCK].long(), positions % BLOCK

    def _write(self, images: Sequence[torch.Tensor], user: int, start: int, rows: KeysValues) -> None:
        blocks, inside = self._places(user, start, rows)
        heads = [head for chip in self.bench.plan.kv_head_of for head in chip]
        for image, values in zip(images, (to_interleaved(rows.keys), rows.values), strict=True):
            image[blocks, :, inside] = values[heads].transpose(0, 1)
