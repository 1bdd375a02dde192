"""Golden functions: the torch reference of a ttnn op, one small function an op.

A golden's parameters are those of its op that it reads, by the op's own names, with torch tensors in place of
ttnn's. It gets the library's default of what a call leaves out, and None for what the call's overload does not have; a
default of its own replaces these. It returns the result of one chip. There are three kinds:

- `@golden("ttnn.linear")`: per chip. It sees one chip's tensors.
- `@golden("ttnn.plus_one", writes="input_tensor")`: in place. It writes into the torch tensor of that parameter, or
  returns all of its new values.
- `@collective("ttnn.all_gather")`: over chips. Tensor arguments are lists, one shard a chip of the group. A result of
  None is a chip's memory that the op does not write.

A golden may have these parameters beside its op's own:

- `out`: the Slot(s) that the real op returned, for ops with a result that depends on the output's shape or dtype.
- `dtypes`: the ttnn dtypes of the tensor arguments, by parameter. torch's bfloat16 holds block floats too.
- `configs`: the memory configs of the tensor arguments (of a list a list) and, as "out", of the first result.
- `chip`: cores and free L1 (mesh/buffers.py), for ops whose library chooses a program by them; None beside a program
  config.
- `paddings`: the values in the padding of the tensor arguments' tiles, by parameter. None: unknown.
- `rewrite`: a function (parameter, values) for an op that overwrites an input beside its result.
- `store`: a function that packs values to the dtype of the tensor that is written in place.
- `tiled`: whether the first result is in tiles.
"""

import inspect
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Callable, Collection, Iterable, NamedTuple

from golden_mesh.signatures import Parameter, default_of, fits, is_default, overloads, parameters_of

# Arguments that say where and how an op runs, or a result's dtype and layout, which the real tensor has. A golden that
# does not read them takes any value. PLACED: parts of the names of more such arguments.
PLACED = ("memory_config", "core_grid", "semaphore", "persistent_")
PLACEMENT = frozenset(
    """
    compute_kernel_config queue_id cq_id num_links topology subdevice_id sub_device_id use_noc1_only
    optional_output_tensor output_tensor out output mesh_device config use_legacy chunks_per_sync
    num_workers_per_link num_buffers_per_channel worker_subdevice_id use_multicore buffer_tensor
    intermediate_tensor use_column_major_ccl input_grad other_grad input_a_grad input_b_grad mat2_grad weight_grad
    bias_grad input_grad_tensor device dtype layout output_dtype input_dtype output_layout output_tile
    optional_tensor grid shard_shape shard_scheme shard_orientation grid_size cluster_axis
    use_optimal_ccl_for_llama use_broadcast program_config compute_config compute_with_storage_grid_size
    overlap_qk_coregrid use_falcon7b_backend use_low_perf global_cb prefetcher_pipes enable_performance_mode
    strategy dram_slice_config slice_config applied_shard_scheme deallocate_input reallocate_halo_output
    reallocate_output config_tensor_in_dram return_output_dim return_weights_and_bias use_welford recip_tensor
    enable_secondary_dm reshape_tile_mode skip_padding_fill force_transpose use_per_device_seed
    disable_compensated_sum fast_and_approximate_mode
    """.split()
)


# Keywords that a golden may have and its op does not.
EXTRAS = frozenset({"chip", "configs", "dtypes", "out", "paddings", "rewrite", "store", "tiled"})
# Files of goldens of ops that move data.
MOVERS = frozenset({"collectives", "creation", "data_movement", "heads", "kv_cache", "layout", "selection"})


class Form(NamedTuple):
    """How calls with so many positional arguments and these keywords bind to a golden."""

    parameters: dict[str, Parameter]  # the overload's, the positional ones first
    defaults: dict[str, object]  # of all parameters that the golden reads
    read: tuple[str, ...]  # those of them that the calls give
    unread: tuple[str, ...]  # others that the calls give, which must have their defaults

    def given(self, args: tuple, kwargs: dict) -> dict[str, object]:
        """Return the call's arguments by the library's names."""
        return dict(zip(self.parameters, args)) | kwargs


@dataclass(frozen=True)
class Golden:
    """A golden and how it is called: golden() says what the fields are."""

    name: str
    function: Callable
    writes: tuple[str, ...] = ()
    over_chips: bool = False
    unread: bool = False
    view: bool = False
    pads: str | float | None = None
    stacks: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    ignores: tuple[str, ...] = ()
    passes: Callable | None = None
    # By the number of positional arguments and the names of the others.
    _forms: dict[tuple, Form | None] = field(default_factory=dict, init=False, compare=False)

    def form(self, function: Callable, args: tuple, kwargs: dict) -> Form | None:
        """Return how the call of the op's `function` binds. None: no overload takes these arguments."""
        key = len(args), *kwargs
        if key not in self._forms:
            self._forms[key] = self._form(function, len(args), kwargs.keys())
        return self._forms[key]

    def arguments(self, form: Form, function: Callable, given: dict) -> dict[str, object]:
        """Return the golden's arguments of a call. An argument of None counts as left out.

        TypeError: the golden does not read an argument that is neither placement nor the library's default.
        """
        for name in form.unread:
            if not is_default(function, name, value := given[name]):
                plain = isinstance(value, (int, float, str, list, tuple))  # else a tensor or a config
                raise TypeError(f"it does not take {name}={repr(value) if plain else type(value).__name__}")
        return form.defaults | {name: given[name] for name in form.read if given[name] is not None}

    def _form(self, function: Callable, count: int, names: Collection[str]) -> Form | None:
        fitting = [found for found in overloads(function) or (self.parameters,) if fits(found, count, names)]
        if not fitting:
            return None
        found = max(fitting, key=lambda parameters: len(parameters.keys() & self.parameters.keys()))
        known = EXTRAS.union(PLACEMENT, self.ignores, self.parameters)
        reads = [name for name in self.parameters if name not in EXTRAS and (name in self.own or name in found)]
        unread = [name for name in found if name not in known and not any(part in name for part in PLACED)]
        if self.passes is None and inspect.unwrap(self.function).__code__.co_flags & inspect.CO_VARKEYWORDS:
            reads, unread = reads + unread, []
        defaults = {name: default_of(name, self.parameters, found) for name in reads}
        given = {*list(found)[:count], *names}
        read, unread = (tuple(filter(given.__contains__, each)) for each in (reads, unread))
        return Form(found, defaults, read, unread)

    @cached_property
    def own(self) -> dict[str, Parameter]:
        return parameters_of(self.function)

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        """The function's own, and those of the function to which it hands on **others."""
        return self.own | (parameters_of(self.passes) if self.passes else {}) | self.own

    @cached_property
    def family(self) -> str:
        """The file of the golden function, without its suffix."""
        return self.function.__module__.rpartition(".")[2]

    @cached_property
    def wants(self) -> frozenset[str]:
        return EXTRAS.intersection(self.own)


GOLDENS: dict[str, Golden] = {}


_NAMES = {"writes", "stacks", "lists", "codes", "ignores"}  # fields of a Golden that are names of parameters


def golden(*names: str, **fields) -> Callable:
    """Register the function as the golden of the ops named, per chip.

    fields: of a Golden; names of parameters with spaces between them.

    - writes: parameters that the op writes in place.
    - unread: the op does not read the `writes` parameters, so their memory may be unwritten.
      Without `writes`, `unread` applies to the tensors that the op returns (ttnn.generic_op).
      The golden then gets None for these tensors.
    - view: the op may return its input's memory. The golden computes the copy for the other case.
    - pads: the value in the padding of the result's tiles, or the parameter that has it: the value, or a tensor with
      such padding. By default it is unknown.
    - stacks: parameters that may have a dim more, of chips, before their own, and equal ranks. Results have it, too:
      small chips in one call take as long as one. Tensors of other parameters are the same on all of these chips.
    - lists: parameters that are then lists of the chips' tensors: what is too large to be copied, as weights.
    - codes: parameters that may be BlockFloats (arithmetic/block_floats.py). Other goldens get their bfloat16 values.
    - ignores: parameters of the op that change no value: any is taken. PLACEMENT has those of many ops.
    - passes: the function to which the golden hands on its **others: those of the op's parameters that it has.
      Without `passes`, **others has all but placement.
    """
    made = {field: tuple(value.split()) if field in _NAMES else value for field, value in fields.items()}

    def register(function: Callable) -> Callable:
        GOLDENS.update({name: Golden(name, function, **made) for name in names})
        return function

    return register


def collective(*names: str, **fields) -> Callable:
    """Register the function as the golden of the collectives named. It sees the shards of all chips of a group."""
    return golden(*names, over_chips=True, **fields)


def golden_table(rows: dict[str, Callable], **fields) -> None:
    """Register a golden for each row: the names of its ops -> its function."""
    for names, function in rows.items():
        golden(*names.split(), **fields)(function)


def wrap(names: Iterable[str], function: Callable) -> None:
    """Put function(golden, **arguments) in place of the goldens of ttnn.`name`. An older ttnn may lack some."""
    for golden in filter(None, (GOLDENS.get(f"ttnn.{name}") for name in names)):
        instead = lambda golden=golden, **arguments: function(golden, **arguments)
        GOLDENS[golden.name] = replace(golden, function=wraps(golden.function)(instead))
