"""A paged cache of a PCC test, and what each of its positions should hold."""

from typing import Sequence

import torch
import ttnn

from models.demos.qwen25_7b.plans.rotary_pairs import to_interleaved
from models.demos.qwen25_7b.tt.attention import TtKVCache
from models.demos.qwen25_7b.tt.model_config import TtModelConfig
from tests.metrics import assert_close, assert_equal
from tests.pcc.reference import KeysValues


class PagedCache:
    """A layer's cache and an image of its expected contents. The users' blocks are scattered.

    An image is [blocks, tp * kv_heads, block, head_dim], with the chips' KV heads side by side.
    Its keys are rotary pairs.
    """

    def __init__(self, mesh_device: ttnn.MeshDevice, config: TtModelConfig, block: int):
        self.mesh_device, self.plan = mesh_device, config.parallel
        self.block, self.context = block, config.max_seq_len
        users, own = config.decode.slots, self.context // block
        blocks = users * (own + 1)  # one unused block a user, which must not change
        self.on_chips = TtKVCache(mesh_device, config.layer(0), blocks, block)
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(blocks, generator=generator)
        self.page_table = order.view(users, -1)[:, :own].int()
        _, kv_heads, *rest = self.on_chips.shape
        shape = (blocks, self.plan.tp * kv_heads, *rest)
        # as large as K's outliers
        self.noise = [100 * torch.randn(shape, generator=generator, dtype=torch.bfloat16) for _ in "kv"]

    def fill(self, users: Sequence[int], histories: Sequence[KeysValues]) -> None:
        """Write these users' cached tokens, and noise everywhere else."""
        images = [noise.clone() for noise in self.noise]
        for user, history in zip(users, histories, strict=True):
            for image, rows in zip(images, self._rows(history), strict=True):
                blocks, inside = self._places(user, 0, len(rows))
                image[blocks, :, inside] = rows.bfloat16()
        mapper = ttnn.ShardTensorToMesh(self.mesh_device, dim=1)
        for image, tensor in zip(images, (self.on_chips.keys, self.on_chips.values), strict=True):
            host = ttnn.from_torch(image, dtype=tensor.dtype, layout=ttnn.TILE_LAYOUT, mesh_mapper=mapper)
            ttnn.copy_host_to_device_tensor(host, tensor)
        self.before = images if self.on_chips.keys.dtype == ttnn.bfloat16 else self._read()

    def assert_wrote(
        self,
        users: Sequence[int],
        starts: Sequence[int],
        written: Sequence[KeysValues],
        *,
        pcc: float,
        to_the_end: bool = False,
    ) -> None:
        """Assert that only the users' keys and values changed since `fill`, from their starts on.

        Outlier keys would hide errors, so each rotary pair is also compared at its own scale.
        to_the_end: The rest of a sequence's last block may change. Prefill writes whole blocks.
        """
        rows = [self._rows(of_user) for of_user in written]
        places = [self._places(u, start, len(keys)) for u, start, (keys, _) in zip(users, starts, rows, strict=True)]
        blocks, inside = (torch.cat(of_users) for of_users in zip(*places))
        untouched = torch.ones(self.on_chips.shape[0], self.block, dtype=torch.bool)
        untouched[blocks, inside] = False
        if to_the_end:
            for of_user, rest in places:
                untouched[of_user[-1], rest[-1] :] = False
        keys, values = (torch.cat(of_users) for of_users in zip(*rows))
        images = self._read()
        for after, before, expected in zip(images, self.before, (keys, values), strict=True):
            changed = (after.view(torch.int64) != before.view(torch.int64)).any(-1).any(1)  # [blocks, block]
            assert_equal(changed & untouched, torch.zeros_like(untouched))
            assert_close(after[blocks, :, inside].float(), expected, pcc=pcc)
        actual, pairs = images[0][blocks, :, inside].float(), keys.unflatten(-1, (-1, 2))
        size = pairs.pow(2).mean(dim=(0, -1)).sqrt().repeat_interleave(2, dim=-1)
        assert_close(actual / size, keys / size, pcc=pcc)

    def _read(self) -> list[torch.Tensor]:
        composer = ttnn.ConcatMeshToTensor(self.mesh_device, dim=1)
        both = self.on_chips.keys, self.on_chips.values
        return [ttnn.to_torch(x, mesh_composer=composer) for x in both]

    def _places(self, user: int, start: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return block, and row in the block, of a user's `tokens` tokens from `start` on."""
        positions = torch.arange(start, start + tokens)
        return self.page_table[user, positions // self.block].long(), positions % self.block

    def _rows(self, of_user: KeysValues) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values in the chips' order, [tokens, tp * kv_heads, head_dim] each."""
        heads = [head for chip in self.plan.kv_head_of for head in chip]
        keys = to_interleaved(of_user.chip_keys)
        return tuple(x[heads].transpose(0, 1) for x in (keys, of_user.values))
