"""Golden functions: the torch reference of a ttnn op, one small function an op.

A golden takes its op's own arguments, by the op's own names, with torch tensors in place of ttnn's. It
returns the result of one chip. There are three kinds:

- `@golden("ttnn.linear")`: per chip. It sees one chip's tensors.
- `@golden("ttnn.plus_one", writes="input_tensor")`: in place. It writes into the torch tensor of that parameter.
- `@collective("ttnn.all_gather")`: over chips. Tensor arguments are lists, one shard a chip of the group. A result of
  None is a chip's memory that the op does not write.

A golden may have these keyword parameters beside its op's own:

- `out`: the Slot(s) that the real op returned, for ops with a result that depends on the output's shape or dtype.
- `dtypes`: the ttnn dtypes of the tensor arguments, by parameter. torch's bfloat16 holds block floats too.
- `configs`: the memory configs of the tensor arguments and, as "out", of the first result.
- `chip`: cores and free L1 (mesh/buffers.py), for ops whose library chooses a program by them; None beside a program
  config.
- `paddings`: the values in the padding of the tensor arguments' tiles, by parameter. None: unknown.
- `rewrite`: a function (parameter, values) for an op that overwrites an input beside its result.
- `store`: a function that packs values to the dtype of the tensor that is written in place.

Chips of different values may be computed in one call (`stacks`, `lists`): small ones take as long as one chip.
"""

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Callable, NamedTuple

from golden_mesh.signatures import is_default

# Arguments that say where and how an op runs. Goldens ignore them. A golden with a result that depends on one of them
# (mostly compute_kernel_config) declares it as a keyword.
PLACEMENT = frozenset(
    "memory_config compute_kernel_config queue_id cq_id core_grid num_links topology sub_core_grids subdevice_id "
    "sub_device_id multi_device_global_semaphore barrier_semaphore use_noc1_only optional_output_tensor output_tensor "
    "out output persistent_output_buffer persistent_output_tensor mesh_device config use_legacy chunks_per_sync "
    "num_workers_per_link num_buffers_per_channel worker_subdevice_id use_multicore buffer_tensor "
    "persistent_output_buffers persistent_intermediate_buffer intermediate_tensor persistent_output_buffer_k "
    "persistent_output_buffer_v persistent_output_buffer_joint_k persistent_output_buffer_joint_v memory_config_ag "
    "memory_config_mm memory_config_rs intermediate_memory_config_rs ccl_core_grid_offset use_column_major_ccl "
    "input_grad other_grad input_a_grad input_b_grad mat2_grad weight_grad bias_grad input_grad_tensor "
    "mean_memory_config rstd_memory_config input_grad_memory_config mat2_grad_memory_config weight_grad_memory_config "
    "bias_grad_memory_config "
    "gamma_grad_memory_config beta_grad_memory_config param_out_memory_config momentum_buffer_out_memory_config".split()
)


# Keywords that a golden may have and its op does not.
EXTRAS = frozenset({"chip", "configs", "dtypes", "out", "paddings", "rewrite", "store"})
# Files of goldens of ops that move data.
MOVERS = frozenset({"collectives", "creation", "data_movement", "heads", "kv_cache", "layout", "selection"})


class Form(NamedTuple):
    """How calls bind to a golden: 0, 1, ... is a positional argument, a name another, None nothing."""

    args: tuple
    kwargs: dict
    unknown: list[str]  # must have the defaults of the operation


@dataclass(frozen=True)
class Golden:
    name: str
    function: Callable
    writes: tuple[str, ...] = ()  # parameters that the op writes in place
    over_chips: bool = False
    unread: bool = False  # the op does not read the tensors that it writes in place
    view: bool = False  # the op may return its input's own memory under another shape
    pads: str | float | None = None  # value in the padding of the result's tiles, or the parameter that has it
    stacks: tuple[str, ...] = ()  # parameters of which the golden takes [chips, ...], too; then so are its results
    lists: tuple[str, ...] = ()  # parameters that are then a list of the chips' tensors
    codes: tuple[str, ...] = ()  # parameters of which the golden takes BlockFloats, too

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.function)  # computed at the first call: 300 of them would lengthen every start

    def arguments(self, args: tuple, kwargs: dict, function: Callable | None = None) -> tuple[tuple, dict]:
        """Return the call's arguments without placement.

        A keyword of None counts as left out. An unknown keyword counts as left out if it has the default of
        the operation's `function`. A placement argument that the op takes by position becomes None, unless
        the op writes it.

        TypeError: the golden does not take the call.
        """
        key = len(args), tuple(kwargs), tuple([value is None for value in kwargs.values()])
        form = self._forms.get(key)
        for name in self._unknown(kwargs) if form is None else form.unknown:
            if function is None or not is_default(function, name, kwargs[name]):
                raise TypeError(f"it does not take {name}={_shown(kwargs[name])}")
        if form is None:
            form = self._forms[key] = self._bind(len(args), kwargs)
        values = {None: None, **kwargs, **dict(enumerate(args))}
        return tuple([values[of] for of in form.args]), {name: values[of] for name, of in form.kwargs.items()}

    @cached_property
    def _forms(self) -> dict[tuple, "Form"]:
        """By the number of positional arguments, the names of the others, and which of these are None."""
        return {}

    def _unknown(self, kwargs: dict) -> list[str]:
        known = self._ignored.union(self.signature.parameters)
        return [] if self.takes_any_keyword else [name for name in kwargs if name not in known]

    def _bind(self, count: int, kwargs: dict) -> "Form":
        unknown = self._unknown(kwargs)
        left_out = {name for name in kwargs if kwargs[name] is None and self._has_default(name)}
        names = [name for name in kwargs if name not in self._ignored.union(unknown, left_out)]
        bound = self.signature.bind_partial(*range(count), **{name: name for name in names})
        for name in self._ignored.intersection(bound.arguments):
            bound.arguments[name] = None
        return Form(bound.args, bound.kwargs, unknown)

    def by_name(self, args: tuple, kwargs: dict) -> dict[str, object]:
        """Return the arguments (of `arguments`) by the names of the golden's parameters."""
        if self._takes_any:
            return self.signature.bind_partial(*args, **kwargs).arguments
        return dict(zip(self.names, args)) | kwargs

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(self.signature.parameters)

    @cached_property
    def _takes_any(self) -> bool:
        return any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in self.signature.parameters.values())

    @cached_property
    def _ignored(self) -> frozenset[str]:
        return PLACEMENT - self.inputs - set(self.writes)

    def _has_default(self, name: str) -> bool:
        parameter = self.signature.parameters.get(name)
        return parameter is not None and parameter.default is not parameter.empty

    @cached_property
    def takes_any_keyword(self) -> bool:
        return any(p.kind == p.VAR_KEYWORD for p in self.signature.parameters.values())

    @cached_property
    def keywords(self) -> frozenset[str]:
        return frozenset(p.name for p in self.signature.parameters.values() if p.kind == p.KEYWORD_ONLY)

    @cached_property
    def family(self) -> str:
        """The file of the golden function, without its suffix."""
        return self.function.__module__.rpartition(".")[2]

    @cached_property
    def computes(self) -> bool:
        """Whether the op computes its result, so that a packer writes it. Else it moves data."""
        return self.family not in MOVERS

    @cached_property
    def inputs(self) -> frozenset[str]:
        """The parameters that are no placement, whatever their names: keywords, and what has no default."""
        found = self.signature.parameters.values()
        return self.keywords.union(p.name for p in found if p.default is p.empty) - EXTRAS

    @property
    def at_once(self) -> bool:
        """Whether one call computes several chips."""
        return bool(self.stacks or self.lists)

    @cached_property
    def wants(self) -> frozenset[str]:
        return self.keywords & EXTRAS


def _shown(value) -> str:
    """Return a keyword's value for an error message. A tensor or a config is shown by the name of its type."""
    plain = value is None or isinstance(value, (bool, int, float, str, list, tuple))
    return repr(value) if plain else type(value).__name__


GOLDENS: dict[str, Golden] = {}


def golden(
    *names: str,
    writes: str = "",
    unread: bool = False,
    view: bool = False,
    pads: str | float | None = None,
    stacks: str = "",
    lists: str = "",
    codes: str = "",
) -> Callable:
    """Register the function as the golden of the ops named, per chip.

    - writes: parameters that the op writes in place.
    - unread: the op does not read the `writes` parameters, so their memory may be unwritten.
      Without `writes`, `unread` applies to the tensors that the op returns (ttnn.generic_op).
      The golden then gets None for these tensors.
    - view: the op may return its input's memory. The golden computes the copy for the other case.
    - pads: the value in the padding of the result's tiles, or the parameter that has it. By default it is unknown.
    - stacks: parameters that may have a dim more, of chips, before their own, and equal ranks. Results have it, too.
      Tensors of other parameters are the same on all of these chips.
    - lists: parameters that are then lists of the chips' tensors: what is too large to be copied, as weights.
    - codes: parameters that may be BlockFloats (arithmetic/block_floats.py). Other goldens get their bfloat16 values.
    """

    def register(function: Callable) -> Callable:
        at_once = {"stacks": tuple(stacks.split()), "lists": tuple(lists.split())}
        for name in names:
            GOLDENS[name] = Golden(
                name, function, tuple(writes.split()), unread=unread, view=view, pads=pads, codes=tuple(codes.split()),
                **at_once,
            )  # fmt: skip
        return function

    return register


def collective(*names: str) -> Callable:
    """Register the function as the golden of the collectives named.

    It sees the shards of all chips of a group.
    """

    def register(function: Callable) -> Callable:
        for name in names:
            GOLDENS[name] = Golden(name, function, over_chips=True)
        return function

    return register
