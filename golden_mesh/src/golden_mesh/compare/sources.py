"""The values of host tensors before ttnn.from_torch rounded them, for golden-mesh compare."""

from collections import OrderedDict
from typing import Callable, NamedTuple, Optional

import torch
import ttnn

from golden_mesh.arithmetic.packer import BLOCK_FLOATS
from golden_mesh.mesh.transfer import bytes_of, shard_values

KEPT = 64  # host tensors that may still be sent to a device


class Source(NamedTuple):
    """A shard of a host tensor: the call of ttnn.from_torch that made it, and the shard's number."""

    shards: Callable[[], list[torch.Tensor]]  # in float32, or in bfloat16 if they came in bfloat16
    index: int
    site: object


class Sources:
    """Host tensors by the address of their buffers. An address may be used again: the caller checks the values."""

    def __init__(self):
        self._by_address: OrderedDict[int, Source] = OrderedDict()

    def note(self, host: ttnn.Tensor, tensor: torch.Tensor, site, convert: Callable) -> None:
        """`host` was made of `tensor`. convert(tensor, dtype): the same call to another dtype, on the host."""
        narrow = tensor.dtype == torch.bfloat16
        rounds = host.dtype in BLOCK_FLOATS if narrow else host.dtype != ttnn.float32
        if not tensor.is_floating_point() or not rounds:
            return
        shards: list[torch.Tensor] = []

        def values() -> list[torch.Tensor]:
            if not shards:
                shards.extend(shard_values(convert(tensor, ttnn.bfloat16 if narrow else ttnn.float32)))
            return shards

        for index, address in enumerate(addresses(host)):
            self._by_address[address] = Source(values, index, site)
            self._by_address.move_to_end(address)
        while len(self._by_address) > KEPT:
            self._by_address.popitem(last=False)

    def find(self, host: ttnn.Tensor) -> Optional[tuple[list[torch.Tensor], object]]:
        """The shards of `host` before they were rounded, and where. None: they are unknown."""
        found = [self._by_address.get(address) for address in addresses(host)]
        if None in found:
            return None
        return [source.shards()[source.index] for source in found], found[0].site


def addresses(host: ttnn.Tensor) -> list[int]:
    """Where each shard lies in the host's memory."""
    return [bytes_of(shard).data_ptr() for shard in ttnn.get_device_tensors(host)]
