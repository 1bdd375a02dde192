"""Golden functions: the torch meaning of a ttnn op, one small function an op.

A golden takes its op's own arguments, by the op's own names, with torch tensors in place of ttnn's, and returns what
one chip computes. Three kinds:

    @golden("ttnn.linear")                       per chip: sees one chip's tensors
    @golden("ttnn.plus_one", writes="input_tensor")   in place: writes into the torch tensor it is given
    @collective("ttnn.all_gather")               over chips: tensor arguments are lists, one shard a chip of the group

A parameter named `out` receives the Slot(s) that the real op returned (for ops whose result is a matter of shape or
dtype); `dtypes` the ttnn dtypes of the tensor arguments, by parameter (torch's bfloat16 holds block floats, too);
`configs` their memory configs (for kernels to which it matters what a core has);
`store` the packing to the dtype of the tensor that is written in place.
"""

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Callable

# Arguments that say where and how an op runs, and are none of a golden's business. A golden that computes otherwise for
# one of them (compute_kernel_config, mostly) has it as a keyword of its own.
PLACEMENT = frozenset(
    "memory_config compute_kernel_config queue_id cq_id core_grid num_links topology sub_core_grids subdevice_id "
    "sub_device_id multi_device_global_semaphore barrier_semaphore use_noc1_only optional_output_tensor output_tensor "
    "output persistent_output_buffer persistent_output_tensor mesh_device config use_legacy chunks_per_sync "
    "num_workers_per_link num_buffers_per_channel worker_subdevice_id use_multicore buffer_tensor "
    "persistent_output_buffers".split()
)


# Keywords of a golden that are none of its op's.
EXTRAS = frozenset({"configs", "dtypes", "out", "store"})


@dataclass(frozen=True)
class Golden:
    name: str
    function: Callable
    writes: tuple[str, ...] = ()  # parameters that the op writes in place
    over_chips: bool = False
    unread: bool = False  # it reads nothing of what it writes in place
    view: bool = False  # the op may return its input's own memory under another shape
    pads: str | float | None = (
        None  # what it puts into the padding of its result's tiles, or the parameter that says so
    )

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.function)  # when it is first called: 300 of them would lengthen every start

    def arguments(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """The call's arguments, placement left out. TypeError for one that the golden does not know.

        A golden may have placement in its signature where the op takes it by position: it is given None, but for what
        it writes.
        """
        ignored = PLACEMENT - self.keywords - set(self.writes)
        kwargs = {name: value for name, value in kwargs.items() if name not in ignored}
        bound = self.signature.bind_partial(*args, **kwargs)
        for name in ignored.intersection(bound.arguments):
            bound.arguments[name] = None
        return bound.args, bound.kwargs

    @cached_property
    def keywords(self) -> frozenset[str]:
        return frozenset(p.name for p in self.signature.parameters.values() if p.kind == p.KEYWORD_ONLY)

    @cached_property
    def wants(self) -> frozenset[str]:
        return self.keywords & EXTRAS


GOLDENS: dict[str, Golden] = {}


def golden(
    *names: str, writes: str = "", unread: bool = False, view: bool = False, pads: str | float | None = None
) -> Callable:
    """Register the function as the golden of the ops named, per chip.

    writes: parameters that the op writes in place; unread: it does not read them, so that it does not matter what part of
    them was never written. view: where the op returned its input's own memory there is nothing
    to compute; the golden is for when it made a copy. pads: what the op puts into the padding of its result's tiles, or
    the parameter that says so; without it nobody knows what lies there.
    """

    def register(function: Callable) -> Callable:
        for name in names:
            GOLDENS[name] = Golden(name, function, tuple(writes.split()), unread=unread, view=view, pads=pads)
        return function

    return register


def collective(*names: str) -> Callable:
    """Register the function as the golden of the collectives named: it sees the shards of all chips of a group."""

    def register(function: Callable) -> Callable:
        for name in names:
            GOLDENS[name] = Golden(name, function, over_chips=True)
        return function

    return register
