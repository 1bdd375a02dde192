"""Every golden takes its op's calls: its parameters and defaults are those of the library."""

import dis
import operator

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError
from golden_mesh.goldens import COUNT
from golden_mesh.registry import EXTRAS, GOLDENS, PLACEMENT
from golden_mesh.signatures import REQUIRED, Parameter, equal, overloads

# Parameters that change what an op computes and that no golden takes: a call that gives one is
# refused.
REFUSED = {
    "ttnn.linear": "in0_column_offset",
    "ttnn.experimental.minimal_matmul": "fuse_swiglu",
    "ttnn.experimental.nlp_create_qkv_heads": "kv_tied output_tensors",
    "ttnn.experimental.nlp_create_qkv_heads_decode": "output_tensors",
    "ttnn.experimental.paged_update_cache": "batch_offset mesh_coords",
    "ttnn.experimental.paged_fused_update_cache": "share_cache batch_offset mesh_coords",
    "ttnn.experimental.paged_fill_cache": "mesh_coords cache_position_modulo valid_seq_len_tensor",
    "ttnn.transformer.scaled_dot_product_attention": "windowed_q_token_offset "
    "windowed_q_token_offset_tensor attn_mask_block_map",
    "ttnn.transformer.chunked_scaled_dot_product_attention": "paged_cache_geometry",
    "ttnn.transformer.scaled_dot_product_attention_decode": "share_cache",
    "ttnn.transformer.paged_scaled_dot_product_attention_decode": "paged_cache_geometry cache_position_modulo",
    "ttnn.transformer.flash_multi_latent_attention_decode": "attention_sink sliding_window_size",
    "ttnn.transformer.paged_flash_multi_latent_attention_decode": "attention_sink sliding_window_size",
    "ttnn.rand": "mesh_mapper",
    "ttnn.transformer.ring_joint_scaled_dot_product_attention": "logical_l is_causal is_balanced "
    "is_cross kv_cache_batch_idx kv_actual_isl "
    "attention_sink sliding_window_size circular_kv_cache "
    "slot_id kv_actual_isl_tensor kv_cache_num_layers kv_cache_layer_idx kv_valid_end_tensor",
    "ttnn.experimental.nlp_create_qkv_heads_vit": "output_tensors",
    "ttnn.experimental.create_qkv_heads": "output_tensors",
    "ttnn.experimental.split_query_key_value_and_split_heads": "output_tensors",
    "ttnn.prod": "dims",
    "ttnn.tilize": "tile",
    "ttnn.moreh_mean": "divisor",
    **{f"ttnn.moreh_{name}{end}": "op" for name in ("softmax", "softmin", "logsoftmax") for end in ("", "_backward")},
    "ttnn.max": "correction",
    "ttnn.min": "correction",
    "ttnn.sum": "correction",
    "ttnn.mean": "correction",
    "ttnn.experimental.minimal_matmul_split": "fuse_swiglu",
    "ttnn.experimental.all_gather_minimal_matmul_async": "fuse_swiglu chunk_sizes "
    "fsdp_cluster_axis "
    "fsdp_multi_device_global_semaphore persistent_weight_buffer fsdp_topology",
    "ttnn.experimental.conv3d": "halo_buffer logical_h_mask logical_w_mask pad_offset_tensor "
    "output_pad_h "
    "output_pad_w weight_lo_tensor",
    "ttnn.moe_expert_token_remap": "optional_output_mapping_tensor optional_output_reduced_tensor",
    "ttnn.experimental.view": "N C H W",  # by keyword
}


# Keywords of goldens that several ops share: only some of the ops have them.
SHARED = {"fast_and_approximate_mode", "mode", "vector_mode", "output_layout", "are_required_outputs"}

# Parameters that goldens take and do not read. They say a result's place, dtype or layout, which
# the real tensor has. Or they say how a kernel divides its work, or how exactly it computes.
WITHOUT_EFFECT = set(
    """
    device dtype layout grid shard_shape
    shard_scheme shard_orientation output_memory_config output_layout output_tile
    input_dtype output_dtype optional_tensor
    cluster_axis rs_global_semaphores
    ag_global_semaphores barrier_semaphores intermediate_memory_config
    use_optimal_ccl_for_llama use_broadcast use_l1_small_for_semaphores
    compute_with_storage_grid_size program_config overlap_qk_coregrid
    use_2d_core_grid use_falcon7b_backend use_low_perf
    dram_slice_config slice_config applied_shard_scheme
    deallocate_input reallocate_halo_output reallocate_output
    config_tensor_in_dram return_output_dim return_weights_and_bias grid_size override_memory_config
    use_welford recip_tensor enable_secondary_dm
    global_cb prefetcher_pipes enable_performance_mode strategy
    reshape_tile_mode skip_padding_fill force_transpose use_per_device_seed
    fast_and_approximate_mode mode vector_mode disable_compensated_sum
    """.split()
)

# Such parameters of single ops: they tell the library the result's shape or padding, or how a
# kernel works.
WITHOUT_EFFECT_OF = {
    "ttnn.assign": "input_b",  # the tensor that it writes and returns
    "ttnn.gather": "sparse_grad",
    "ttnn.experimental.isin": "assume_unique",
    "ttnn.reshape_on_device": "W X Y Z",
    "ttnn.zeros": "shape",
    "ttnn.ones": "shape",
    "ttnn.moreh_full": "shape",
    "ttnn.full": "shape",
    "ttnn.zeros_like": "tensor",
    "ttnn.ones_like": "tensor",
    "ttnn.full_like": "tensor",
    "ttnn.tilize_with_val_padding": "output_tensor_shape",
    "ttnn.embedding": "padding_idx",
    "ttnn.dram_prefetcher": "tensors num_layers",
    "ttnn.topk": "sorted",
    "ttnn.sort": "stable",
    "ttnn.batch_norm": "momentum",
    "ttnn.group_norm": "inplace input_mask negative_mask num_out_blocks",
    "ttnn.transpose": "pad_value",
    "ttnn.to_layout": "pad_value",
    "ttnn.reshape": "pad_value logical_shape padded_shape",
    "ttnn.permute": "pad_value",
    "ttnn.experimental.all_reduce_async": "num_devices",
    "ttnn.slice": "slice_dim num_devices pad_value",
    "ttnn.fill_rm": "any",
    "ttnn.fill_implicit_tile_padding": "fill_value",
    "ttnn.unsqueeze": "dim",
    "ttnn.squeeze": "dim",
    "ttnn.bcast": "dim",
    "ttnn.embedding_bw": "weight_tensor",
    "ttnn.fold": "output_shape collapse_output",
    "ttnn.moreh_norm": "keepdim",
    "ttnn.moreh_norm_backward": "keepdim",
    "ttnn.moreh_sum": "keepdim",
    "ttnn.moreh_sum_backward": "keepdim input",
    "ttnn.moreh_mean": "keepdim",
    "ttnn.moreh_mean_backward": "keepdim input_grad_shape",
    "ttnn.moreh_arange": "end untilize_out",
    "ttnn.moreh_full_like": "input",
    "ttnn.moreh_sgd": "param_out momentum_buffer_out",
    "ttnn.sparse_matmul": "is_input_b_sparse",
    "ttnn.experimental.all_gather_matmul_async": "all_gather_core_grid_offset",
    "ttnn.experimental.matmul_reduce_scatter_async": "reduce_scatter_core_grid_offset",
    "ttnn.prepare_conv_weights": "input_memory_config input_layout batch_size input_height "
    "input_width stride padding dilation has_bias compute_config",
    "ttnn.prepare_conv_bias": "input_memory_config input_layout in_channels batch_size "
    "input_height input_width kernel_size stride "
    "padding dilation groups conv_config compute_config",
    "ttnn.prepare_conv_transpose2d_weights": "input_memory_config input_layout batch_size "
    "input_height input_width stride padding output_padding dilation has_bias compute_config",
    "ttnn.prepare_conv_transpose2d_bias": "input_memory_config input_layout in_channels "
    "batch_size input_height input_width kernel_size stride "
    "padding dilation groups conv_config compute_config",
}

# Members of enums that a golden's default of None stands for.
NONE_MEANS = {"reduction": "NONE", "variant": "Accurate"}


def of_op(name: str) -> tuple[dict[str, Parameter], ...]:
    """The parameters of each overload that the library declares for the op."""
    return overloads(function_of(name))


def function_of(name: str):
    """The library's function of an op, which may be no registered operation (start/install.py)."""
    inside = getattr(ttnn._ttnn.operations.conv, name.removeprefix("ttnn."), None)
    if inside is not None and hasattr(inside, "__wrapped__"):
        return inside.__wrapped__
    return operator.attrgetter(name.removeprefix("ttnn."))(ttnn).function


def names_of(name: str) -> set[str]:
    return {parameter for overload in of_op(name) for parameter in overload}


def signature(name: str):
    """The golden's named parameters, and whether it takes any number of positional ones, any
    keywords.
    """
    found = GOLDENS[name].signature.parameters.values()
    named = [p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return (
        [p.name for p in named if p.kind == p.POSITIONAL_OR_KEYWORD],
        {p.name for p in named} - EXTRAS,
        any(p.kind == p.VAR_POSITIONAL for p in found),
        any(p.kind == p.VAR_KEYWORD for p in found),
    )


def unused(name: str) -> set[str]:
    """Parameters that the golden takes and never reads."""
    function = GOLDENS[name].function
    if hasattr(function, "__signature__"):  # a factory's: it passes all on
        return set()
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    loads = {i.argval for i in dis.get_instructions(code) if i.opname.startswith("LOAD_")}
    loads |= {name for found in loads if isinstance(found, tuple) for name in found}
    return set(code.co_varnames[:count]) - loads - set(code.co_cellvars) - EXTRAS - PLACEMENT


def test_every_golden_counts():
    assert COUNT == len(GOLDENS) > 100


@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_every_parameter_of_the_op_is_known_or_refused_on_purpose(name):
    _, known, _, any_keyword = signature(name)
    refused = set(REFUSED.get(name, "").split())
    assert not refused & known, "listed as refused, but known"
    assert refused <= names_of(name), "listed as refused, but no parameter of the op"
    assert any_keyword or names_of(name) - known - PLACEMENT - refused == set()


@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_a_golden_has_only_the_ops_parameters(name):
    """Except the parameters in SHARED, which only some ops of a shared golden have."""
    _, known, _, _ = signature(name)
    assert known - names_of(name) - SHARED == set()


@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_positional_arguments_have_the_ops_order(name):
    """The order is that of one overload, or the golden sorts the arguments by itself."""
    mine, _, any_positional, _ = signature(name)
    theirs = [[n for n in found if not found[n].keyword_only] for found in of_op(name)]
    assert any_positional or any(names == mine[: len(names)] for names in theirs)


@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_a_parameter_that_is_left_out_has_the_ops_default(name):
    for parameter in GOLDENS[name].signature.parameters.values():
        if parameter.name in EXTRAS | PLACEMENT | unused(name):
            continue
        theirs = [found[parameter.name].default for found in of_op(name) if parameter.name in found]
        theirs = [default for default in theirs if default is not REQUIRED]
        if not theirs or parameter.default is parameter.empty:
            continue  # the op or the golden cannot be called without the parameter
        if parameter.default is None and _stands_for(parameter.name, theirs):
            continue
        found = f"{parameter.name}={parameter.default!r}, the op's default is {theirs}"
        assert any(equal(parameter.default, default) for default in theirs), found


def _stands_for(name: str, defaults: list) -> bool:
    """Whether None stands for the op's default: a member of an enum, or a program config."""
    return all(
        getattr(default, "name", "") == NONE_MEANS.get(name) or type(default).__name__ == "SoftmaxDefaultProgramConfig"
        for default in defaults
    )


@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_a_golden_uses_each_parameter_or_it_changes_no_value(name):
    expected = WITHOUT_EFFECT | set(WITHOUT_EFFECT_OF.get(name, "").split())
    assert unused(name) - expected == set()


@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_a_keyword_with_its_default_or_none_is_never_refused(name):
    golden, function = GOLDENS[name], function_of(name)
    for found in of_op(name):
        for parameter, (keyword_only, default) in found.items():
            if keyword_only and default is not REQUIRED:
                golden.arguments((), {parameter: default}, function)
                golden.arguments((), {parameter: None}, function)


def test_the_refusal_of_a_keyword_names_the_op_and_the_keyword(chips):
    x = chips.put(torch.zeros(1, 1, 32, 32))
    ttnn.linear(x, x, global_cb=None, prefetcher_pipes=[])
    with pytest.raises(GoldenError, match="ttnn.sum .*correction=False"):
        ttnn.sum(x, correction=False)
