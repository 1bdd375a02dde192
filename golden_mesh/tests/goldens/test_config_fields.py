"""Every field of a config object is read by the op's golden, refused, or in a list here."""

import operator
import re
import types

import pytest
import torch
import ttnn
from test_signatures import function_of

from golden_mesh.errors import GoldenError
from golden_mesh.mesh.arguments import REFUSED_FIELDS
from golden_mesh.registry import GOLDENS

# They say where a kernel runs and how it divides its work. The result's place and layout are the real tensor's.
WITHOUT_EFFECT = frozenset(
    """
    compute_with_storage_grid_size sub_core_grids core_grid allowed_worker_cores hop_cores
    per_core_M per_core_N out_subblock_h out_subblock_w out_block_h out_block_w subblock_h subblock_w block_h
    M_block_size N_block_size T_out_block H_out_block W_out_block C_out_block alignment act_block_h_override
    act_block_w_div slice_type num_slices full_inner_dim fuse_batch mcast_in0 transpose_mcast gather_in0 stream_in1
    num_global_cb_receivers num_workers_per_dram_bank untilize_out inplace output_layout deallocate_activation
    reallocate_halo_output config_tensors_in_dram reshard_if_not_optimal override_sharding_config
    override_output_sharding_config shard_layout transpose_shards enable_act_double_buffer enable_weights_double_buffer
    enable_activation_reuse enable_kernel_stride_folding force_split_reader dst_full_sync_en throttle_level legacy_rsqrt
    """.split()
)

# They change the order of sums, or how exactly a function is computed: the last bits. Ops that do not read them compute
# in float32.
PRECISION = frozenset(
    """
    math_fidelity math_approx_mode fp32_dest_acc_en packer_l1_acc exp_approx_mode q_chunk_size k_chunk_size
    max_cores_per_head_batch max_k_splits in0_block_w K_block_size block_w legacy_reduction use_welford
    """.split()
)

OF_THE_CONV = {"activation", "padding_mode", "weights_dtype"}
ELSEWHERE = {  # fields that another op or argument of the call decides
    "ttnn.prepare_conv_weights": OF_THE_CONV,
    "ttnn.prepare_conv_bias": OF_THE_CONV,
    "ttnn.prepare_conv_transpose2d_weights": OF_THE_CONV,
    "ttnn.prepare_conv_transpose2d_bias": OF_THE_CONV,
    "ttnn.experimental.conv3d": {"dilation", "weights_dtype"},
}
PLACES = {"MemoryConfig", "MeshMapperConfig"}  # the real tensors have these


def names_in(function) -> set[str]:
    """Attributes and strings in the code of a function and of those that it may call."""
    found, seen, left = set(), set(), [function]
    while left:
        function = left.pop()
        function = getattr(function, "__func__", function)
        if not isinstance(function, types.FunctionType) or function in seen:
            continue
        if not function.__module__.startswith("golden_mesh"):
            continue
        seen.add(function)
        codes = [function.__code__]
        for code in codes:
            codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        names = {name for code in codes for name in code.co_names}
        found |= names | {c for code in codes for c in code.co_consts if isinstance(c, str)}
        used = [function.__globals__.get(name) for name in names]
        owners = [u for u in used if isinstance(u, (types.ModuleType, type))]
        left += used + [vars(owner).get(name) for owner in owners for name in names]
        left += [cell.cell_contents for cell in function.__closure__ or ()]
    return found


def fields_of(op: str) -> dict[str, str]:
    """The fields of the configs that the op takes, with the config's class."""
    try:
        function = function_of(op)
    except AttributeError:  # newer than this ttnn
        return {}
    call = getattr(type(function), "__call__", None)
    declared = getattr(function, "__nb_signature__", getattr(call, "__nb_signature__", ()))
    paths = {p for text, *_ in declared for p in re.findall(r"ttnn\._ttnn\.([\w.]+Config)\b", text)}
    classes = [operator.attrgetter(path)(ttnn._ttnn) for path in paths]
    return {
        field: found.__name__
        for found in classes
        if found.__name__ not in PLACES
        for field, value in vars(found).items()
        if isinstance(value, property)
    }


WITH_CONFIGS = [op for op in sorted(GOLDENS) if fields_of(op)]


@pytest.mark.parametrize("op", WITH_CONFIGS)
def test_every_field_is_read_refused_or_listed(op):
    read, refused = names_in(GOLDENS[op].function), set(REFUSED_FIELDS.get(op, ()))
    known = WITHOUT_EFFECT | PRECISION | ELSEWHERE.get(op, set())
    assert set(fields_of(op)) - read - refused - known == set()
    assert refused <= set(fields_of(op)), "refused, but no field of its configs"
    assert not refused & read, "refused, but read"


def test_the_walk_sees_the_configs_and_what_goldens_read():
    assert len(WITH_CONFIGS) > 60 and set(REFUSED_FIELDS) <= set(WITH_CONFIGS)
    assert fields_of("ttnn.conv2d")["padding_mode"] == "Conv2dConfig"
    assert "fused_activation" in names_in(GOLDENS["ttnn.matmul"].function)  # through linear
    assert "fused_activation" not in names_in(GOLDENS["ttnn.addmm"].function)


def test_a_refused_field_is_named(chips):
    x = chips.put(torch.ones(1, 1, 32, 32))
    config = ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig(
        compute_with_storage_grid_size=(1, 1), in0_block_w=1, out_subblock_h=1, out_subblock_w=1, per_core_M=1,
        per_core_N=1, fuse_batch=True, mcast_in0=True, fused_activation=ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU),
    )  # fmt: skip
    with pytest.raises(GoldenError, match="ttnn.addmm: .*ProgramConfig.fused_activation="):
        ttnn.addmm(x, x, x, program_config=config)
