"""Fields of config objects (program_config, conv_config, compute_kernel_config) that a golden does not read.

A golden reads a field, or the field stands here. tests/goldens/test_config_fields.py walks all fields of all
configs that an op with a golden takes.
"""

from typing import Any, Iterable

from golden_mesh.errors import GoldenError

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

# op -> fields that change its result. A call that sets one is refused.
REFUSED: dict[str, tuple[str, ...]] = {
    "ttnn.addmm": ("fused_activation",),
    "ttnn.sparse_matmul": ("fused_activation",),
    "ttnn.conv_transpose2d": ("padding_mode",),
    "ttnn.experimental.conv3d": ("enable_fp32_operand_split",),
} | {
    f"ttnn.transformer.{name}": ("matmul_math_fidelity", "segmented_accumulation")
    for name in """
    chunked_flash_mla_prefill chunked_scaled_dot_product_attention flash_mla_prefill
    flash_multi_latent_attention_decode joint_scaled_dot_product_attention
    paged_flash_multi_latent_attention_decode paged_scaled_dot_product_attention_decode
    ring_joint_scaled_dot_product_attention scaled_dot_product_attention scaled_dot_product_attention_decode
    """.split()
}


def check(op: str, arguments: Iterable[Any]) -> None:
    """Raise GoldenError if a config among the arguments sets a field that the op's golden would have to read."""
    for field in REFUSED.get(op, ()):
        for config in arguments:
            value = getattr(config, field, None)
            if value not in (None, False) and getattr(value, "name", "") != "Zeros":
                raise GoldenError(
                    f"{op}: its golden does not know {type(config).__name__}.{field}={value}: leave it out"
                )
