"""A recipe file sets the model's formats. tests/commands/test_refusals.py has what is refused."""

import json

import pytest

from models.demos.qwen25_7b.config import PERFORMANCE, QWEN25_7B, Group, recipe_named
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.plans.chip import WORMHOLE
from models.demos.qwen25_7b.plans.model_table import ModelTable
from models.demos.qwen25_7b.plans.parallel_plan import ParallelPlan


def written(tmp_path, content) -> str:
    file = tmp_path / "mine.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return f"{file}"


def test_a_file_changes_its_base_and_single_layers(tmp_path):
    content = {
        "base": "performance",
        "lm_head": {"format": "bfloat8_b", "fidelity": "HiFi2"},
        "all_reduce_dtype": "bfloat16",
        "layers": {"27": {"kv_cache": "bfloat16"}, "0": {"mlp_in": "bfloat8_b"}},
    }
    recipe = recipe_named(written(tmp_path, content))
    assert recipe.name == "mine" and recipe.lm_head.math_fidelity == "HiFi2" and recipe.mlp_in == PERFORMANCE.mlp_in
    assert recipe.all_reduce_dtype == "bfloat16" != PERFORMANCE.all_reduce_dtype
    assert [i for i, _ in recipe.different] == [0, 27]
    assert recipe.of_layer(0).mlp_in == Group("bfloat8_b") and recipe.of_layer(0).kv_cache == "bfloat8_b"
    assert recipe.of_layer(27).kv_cache == "bfloat16" and recipe.of_layer(27).mlp_in == PERFORMANCE.mlp_in
    assert recipe.of_layer(5).mlp_in == PERFORMANCE.mlp_in


def test_a_format_alone_is_multiplied_as_it_needs(tmp_path):
    recipe = recipe_named(written(tmp_path, {"mlp_out": "bfloat4_b", "attention": "bfloat16"}))
    assert (recipe.mlp_out.math_fidelity, recipe.attention.math_fidelity) == ("LoFi", "HiFi3")


def test_a_custom_recipe_is_printed_with_all_its_fields(tmp_path):
    message = str(recipe_named(written(tmp_path, {"mlp_in": "bfloat4_b", "layers": {"3": {"mlp_in": "bfloat8_b"}}})))
    assert "mlp_in bfloat4_b" in message and "layer 3: mlp_in bfloat8_b" in message
    assert str(PERFORMANCE) == "performance"


def test_a_layer_beyond_the_model_is_refused_before_anything_is_read(tmp_path):
    recipe = recipe_named(written(tmp_path, {"layers": {"28": {"kv_cache": "bfloat16"}}}))
    with pytest.raises(UserError, match="recipe mine, layer 28: the model has layers 0 to 27"):
        ModelTable(QWEN25_7B, ParallelPlan.make(QWEN25_7B, 2), recipe, WORMHOLE)
