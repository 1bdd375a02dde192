"""What an older ttnn lacks of the newest one: tests that must fail with it, and why.

A key is the beginning of a test's id below tests/. conftest.py marks these tests. A test that passes all the same
fails the run: the golden mesh then serves more of that version than this table says.
"""

_NEWER = "the op, or its parameter, is newer"

FAILS = {
    "0.77.0": {
        "goldens/test_calls_of_others.py::test_a_router_chooses_experts": "its result had another shape",
        "goldens/test_attention_goldens.py::test_examples[chunked(x, y, z, u, 64, sliding": _NEWER,
        "goldens/test_attention_goldens.py::test_examples[prefill(x, y, z, cu_window_seqlens=u, is_causal=True": (
            "its windows are not causal"
        ),
        "goldens/test_attention_decode_goldens.py::test_tokens_of_a_user_each_see_the_cache_up_to": _NEWER,
        "goldens/test_eltwise_goldens.py::test_examples[ttnn.subtract(2.5, x)]": _NEWER,
        "goldens/test_eltwise_goldens.py::test_examples[ttnn.mac(x, 2.0, y)]": _NEWER,
        "goldens/test_eltwise_goldens.py::test_examples_in_float32[ttnn.geglu(": _NEWER,
        "goldens/test_eltwise_goldens.py::test_examples_in_float32[ttnn.clamped_silu_glu(": _NEWER,
        "goldens/test_eltwise_unary_goldens.py::test_unknown_arguments_of_a_rule_are_refused": _NEWER,
        "goldens/test_matmul_goldens.py::test_a_decode_matmul_adds_blocks_of_k[8]": "a block was of one shard",
        "goldens/test_matmul_goldens.py::test_a_decode_matmul_adds_blocks_of_k[16]": "a block was of one shard",
        "goldens/test_heads_goldens.py::test_examples[E.nlp_create_q_heads_split(": _NEWER,
        "goldens/test_kv_cache_goldens.py::test_rows_of_a_prompt_go_to_places": _NEWER,
        "goldens/test_kernel_defaults.py::test_the_default_is_ttnns[softmax": "the default was HiFi4",
        "goldens/test_reduction_goldens.py::test_examples[E.fast_reduce_nc_split(": _NEWER,
        "goldens/test_data_movement_goldens.py::test_in_tiles[ttnn.experimental.transpose_rm(x)]": _NEWER,
        "goldens/test_selection_goldens.py::test_in_rows[ttnn.index_fill_new(": _NEWER,
        "test_compare_faults.py::test_a_clash_lists_the_circular": "its graph has none of a program that fails",
        "test_every_door.py::test_every_attribute_of_a_tensor_is_in_one_table": _NEWER,
        "test_every_door.py::test_every_name_in_a_table_is_an_operations": _NEWER,
        "test_every_door.py::test_every_other_function_is_plain_replaced_or_refuses": _NEWER,
        "test_tensor_methods.py::test_operators[6 sub]": _NEWER,
        "test_traces.py::test_ttnn_is_told_of_a_capture": _NEWER,
        "test_traces.py::test_ttnns_tracking_of_allocations": "it tracks no allocations",
    }
}
# The tables of these tests are one version's.
OF_THE_NEWEST = "goldens/test_signatures.py", "goldens/test_config_fields.py"
