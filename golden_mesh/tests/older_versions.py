"""What an older ttnn lacks of the newest one: tests that must fail with it, and why.

A key is the beginning of a test's id below tests/. conftest.py marks these tests. A test that passes all the same
fails the run: the golden mesh then serves more of that version than this table says.
"""

_NEWER = "the op, or its parameter, is newer"
_JOINS = "decode attention of several cores a KV head is refused: it was wrong with a float32 dest (tt-metal 56171)"

FAILS = {
    "0.77.0": {
        "goldens/test_calls_of_others.py::test_a_router_chooses_experts": "its result had another shape",
        "goldens/test_attention_goldens.py::test_examples[chunked(x, y, z, u, 64, sliding": _NEWER,
        "goldens/test_attention_goldens.py::test_examples[prefill(x, y, z, cu_window_seqlens=u, is_causal=True": (
            "its windows are not causal"
        ),
        "goldens/test_attention_decode_goldens.py::test_tokens_of_a_user_each_see_the_cache_up_to": _NEWER,
        "goldens/test_eltwise_goldens.py::test_examples[ttnn.subtract(2.5, x)]": _NEWER,
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
        "goldens/test_eltwise_goldens.py::test_examples[6 - x]": _NEWER,
        "test_traces.py::test_ttnn_is_told_of_a_capture": _NEWER,
        "test_traces.py::test_ttnns_tracking_of_allocations": "it tracks no allocations",
        "goldens/test_calls_of_others.py::test_a_whole_number_is_an_int_or_a_float[div(N, x)": _NEWER,
        "goldens/test_calls_of_others.py::test_names_of_an_overload[ttnn.mac(x, y, value=3": _NEWER,
        "goldens/test_calls_of_others.py::test_names_of_an_overload[ttnn.mac(x, value=3, input": _NEWER,
        "goldens/test_chips_at_once.py::test_equal_bits[ATTEND(x, x, x, output_concat_heads": _NEWER,
        "goldens/test_chips_at_once.py::test_equal_bits[CHUNKED(x, y, y, z, ": _NEWER,
        "goldens/test_chips_at_once.py::test_equal_bits[PAGED(x, y, z, u, cur_pos_tensor=v, spec": _NEWER,
        "goldens/test_eltwise_goldens.py::test_examples[ttnn.div(3.0, x": _NEWER,
        "goldens/test_integer_goldens.py::test_an_integer_and_a_number[mac(": _NEWER,
        "goldens/test_matmul_goldens.py::test_examples[ttnn.linear(x, y, bias=z, **HOW)"
        "  # [1, 1, 64, 64] and [1, 1, 1, 1": "a bias had all columns",
        "test_families.py::test_a_listed_case_differs_by_what_the_page_says[att.*": _NEWER,
        "test_families.py::test_with_exact_sums_a_product_is_the_chips[att.chunked.sink": _NEWER,
        "goldens/test_attention_decode_goldens.py::test_examples": _JOINS,
        "goldens/test_attention_decode_goldens.py::test_many_long_sequences": _JOINS,
        "goldens/test_attention_decode_goldens.py::test_paged_decode_sees_each_user": _JOINS,
        "goldens/test_attention_decode_goldens.py::test_windows_and_sinks": _JOINS,
        "goldens/test_hazards.py::test_which_calls_meet_a_hazard[window(128, 140, wide": _JOINS,
        "test_special.py::test_a_special_value_gives_what_a_chip_gives[de.mask": _JOINS,
    }
}
for _threads in "13":
    for _cores in ("128-2", "32-16", "64-3"):
        _name = f"test_decode_attention[{_threads}-threads-{_cores}-float32"
        FAILS["0.77.0"][f"goldens/test_batch_invariance.py::{_name}"] = _JOINS
for _case in ("bfloat16", "bfloat8_b", "normal", "weights", "one_user.at1023.cores4", "one_user.at500.cores4"):
    _name = f"test_the_golden_mesh_is_as_near_to_the_chip_as_it_says[sdpa_decode.{_case}"
    FAILS["0.77.0"][f"test_vectors.py::{_name}"] = _JOINS
# The tables of these tests are one version's.
OF_THE_NEWEST = "goldens/test_signatures.py", "goldens/test_config_fields.py"
