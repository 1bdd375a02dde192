"""A stand-in for tt-metal's module of this name, which fixes the folders above it. A tt-metal on sys.path comes first.

Before data-parallel ranks start, the plugin (b95c050) imports create_submeshes from it to find the chips of each rank,
in a process that must end within 5 s of its answer. The file goes when the plugin cuts the mesh itself.
"""

from ctypes import CDLL
from multiprocessing.util import Finalize

import ttnn


def create_submeshes(mesh_device: ttnn.MeshDevice, data_parallel: int) -> list[ttnn.MeshDevice]:
    """The mesh cut into `data_parallel` rows of equally many chips."""
    # By C's exit, because Python would free its objects, which takes seconds with ttnn.
    Finalize(None, CDLL(None).exit, args=(0,), exitpriority=-100)
    return mesh_device.create_submeshes(ttnn.MeshShape(1, mesh_device.get_num_devices() // data_parallel))
