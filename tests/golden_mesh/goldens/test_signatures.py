"""Every golden can be called as its op can: the op's own signatures, read from the library, are the specification."""

import operator
import re

import pytest
import ttnn

from models.common.golden_mesh.goldens import COUNT
from models.common.golden_mesh.registry import EXTRAS, GOLDENS, PLACEMENT

# Parameters that change what an op computes and that no golden knows: a call that gives one is refused.
REFUSED = {
    "ttnn.linear": "global_cb prefetcher_pipes in0_column_offset",
    "ttnn.matmul": "global_cb prefetcher_pipes",
    "ttnn.experimental.minimal_matmul": "fuse_swiglu",
    "ttnn.experimental.nlp_create_qkv_heads": "kv_tied output_tensors",
    "ttnn.experimental.nlp_create_qkv_heads_decode": "output_tensors",
    "ttnn.experimental.paged_update_cache": "share_cache batch_offset mesh_coords block_size num_kv_heads",
    "ttnn.experimental.paged_fused_update_cache": "share_cache batch_offset mesh_coords",
    "ttnn.experimental.paged_fill_cache": "mesh_coords block_size cache_position_modulo valid_seq_len_tensor",
    "ttnn.transformer.scaled_dot_product_attention": "sliding_window_size attention_sink "
    "windowed_q_token_offset windowed_q_token_offset_tensor attn_mask_block_map",
    "ttnn.transformer.chunked_scaled_dot_product_attention": "paged_cache_geometry sliding_window_size attention_sink",
    "ttnn.transformer.scaled_dot_product_attention_decode": "attention_sink sliding_window_size share_cache",
    "ttnn.transformer.paged_scaled_dot_product_attention_decode": "attention_sink sliding_window_size "
    "paged_cache_geometry cache_position_modulo spec_multi_pos_tiles",
    "ttnn.transformer.flash_mla_prefill": "input_tensor_v",  # by keyword
    "ttnn.transformer.flash_multi_latent_attention_decode": "attention_sink sliding_window_size",
    "ttnn.transformer.paged_flash_multi_latent_attention_decode": "attention_sink sliding_window_size",
    "ttnn.slice": "pad_value slice_dim num_devices",
    "ttnn.assign": "input_a input_b",  # the overload that writes into its second tensor, by keyword
    "ttnn.cumprod": "out",
    "ttnn.cumsum": "out",
    "ttnn.ema": "out",
    "ttnn.experimental.isin": "out",
    "ttnn.experimental.nlp_create_qkv_heads_vit": "output_tensors",
    "ttnn.mac": "value value1 value2",  # by keyword
    "ttnn.prod": "dims",
    "ttnn.sort": "out",
    "ttnn.gather": "out",
    "ttnn.tilize": "tile",
    "ttnn.max": "correction",
    "ttnn.min": "correction",
    "ttnn.sum": "correction",
    "ttnn.mean": "correction",
    "ttnn.reshape": "reshape_tile_mode skip_padding_fill",
    "ttnn.experimental.view": "N C H W",  # by keyword
}


def overloads(name: str) -> list[tuple[list[str], list[str]]]:
    """(positional parameters, keyword-only parameters) of each overload that the library declares for the op."""
    function = operator.attrgetter(name.removeprefix("ttnn."))(ttnn).function
    declared = getattr(function, "__nb_signature__", None) or type(function).__call__.__nb_signature__
    return [parameters(text) for text, *_ in declared if "ComplexTensor" not in text]


def parameters(declaration: str) -> tuple[list[str], list[str]]:
    """Parameter names of "def f(self, a: T, b: U = \\0, *, c: V) -> R", whose types may hold commas."""
    inner = declaration[declaration.index("(") + 1 : declaration.rindex(") ->")]
    while re.search(r"\[[^\[\]]*\]", inner):
        inner = re.sub(r"\[[^\[\]]*\]", "", inner)
    names = [part.split(":")[0].strip() for part in inner.split(",")]
    names = [name for name in names if name not in ("self", "/")]
    if "*" not in names:
        return names, []
    return names[: names.index("*")], names[names.index("*") + 1 :]


def signature(name: str):
    """The golden's named parameters, and whether it takes any number of positional ones, any keywords."""
    found = GOLDENS[name].signature.parameters.values()
    named = [p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return (
        [p.name for p in named if p.kind == p.POSITIONAL_OR_KEYWORD],
        {p.name for p in named} - EXTRAS,
        any(p.kind == p.VAR_POSITIONAL for p in found),
        any(p.kind == p.VAR_KEYWORD for p in found),
    )


def test_every_golden_counts():
    assert COUNT == len(GOLDENS) > 100


@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_every_parameter_of_the_op_is_known_or_refused_on_purpose(name):
    _, known, _, any_keyword = signature(name)
    refused = set(REFUSED.get(name, "").split())
    of_op = {p for positional, keyword in overloads(name) for p in positional + keyword}
    assert not refused & known, "listed as refused, but known"
    assert refused <= of_op, "listed as refused, but no parameter of the op"
    assert any_keyword or of_op - known - PLACEMENT - refused == set()


@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_a_golden_has_no_parameter_of_its_own(name):
    """But for those about exactness and layout in families that share a golden: only some members have them."""
    _, known, _, _ = signature(name)
    of_op = {p for positional, keyword in overloads(name) for p in positional + keyword}
    assert known - of_op - {"fast_and_approximate_mode", "mode", "vector_mode", "output_layout"} == set()


@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_positional_arguments_have_the_ops_order(name):
    """In at least one overload; where overloads disagree the golden sorts the arguments out itself, or refuses."""
    mine, _, any_positional, _ = signature(name)
    assert any_positional or any(theirs == mine[: len(theirs)] for theirs, _ in overloads(name))
