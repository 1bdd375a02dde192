"""DecoderConfig reads configs of transformers, and refuses features that this port lacks.

A recipe file sets the model's formats. tests/commands/test_refusals.py has what is refused of one.
"""

import json

import pytest
import transformers

from models.demos.qwen25_7b.config import PERFORMANCE, QWEN25_7B, ConfigError, DecoderConfig, Group, recipe_named
from models.demos.qwen25_7b.config.decoder_config import FAMILIES
from models.demos.qwen25_7b.errors import UserError
from tests.families import table_of

# Qwen/Qwen2.5-7B-Instruct's config.json, field for field
INSTRUCT = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "initializer_range": 0.02,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "model_type": "qwen2",
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.43.1",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 152064,
}


def test_the_published_7b_config_is_the_constant():
    """The published file sets sliding_window and does not use it. It must not be refused."""
    assert DecoderConfig.from_dict(INSTRUCT) == QWEN25_7B
    assert QWEN25_7B.head_dim == 128


def test_several_end_tokens_are_kept():
    config = DecoderConfig.from_dict({**INSTRUCT, "eos_token_id": [151645, 151643]})
    assert config.eos_token_ids == (151645, 151643)
    assert DecoderConfig.from_dict({**INSTRUCT, "eos_token_id": None}).eos_token_ids == ()


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
REFUSED = [
    ({"model_type": "gemma2"}, ["model_type", "'qwen2'", "'gemma2'"]),
    ({"model_type": "qwen3_moe"}, ["model_type", "'qwen3_moe'", "dense"]),
    ({"model_type": "llama"}, ["architectures", "'llama'", "LlamaForCausalLM"]),
    ({"model_type": None}, ["model_type", "None"]),
    ({"architectures": ["Qwen2ForRewardModel"]}, ["architectures", "Qwen2ForRewardModel"]),
    ({"hidden_act": "gelu"}, ["hidden_act", "'silu'", "'gelu'"]),
    ({"use_sliding_window": True, "max_window_layers": 21}, ["use_sliding_window must be false", "layers 21 to 27"]),
    ({"layer_types": ["full_attention", "sliding_attention"]}, ["sliding-window"]),
    ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, ["rope_type", "linear", "yarn"]),
    ({"rope_scaling": {"type": "llama3", "factor": 4.0}}, ["llama3", "low_freq_factor", "None"]),
    ({"rope_scaling": LLAMA3 | {"high_freq_factor": 0.5}}, ["less than its high_freq_factor"]),
    ({"rope_scaling": LLAMA3 | {"beta_fast": 32}}, ["beta_fast beside rope_type 'llama3' would not be read"]),
    ({"rope_scaling": YARN | {"attn_factor": 1.0}}, ["attn_factor beside rope_type 'yarn' would not be read"]),
    ({"rope_parameters": {"rope_type": "default", "factor": 4.0}}, ["factor beside rope_type 'default' would not be"]),
    ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e6}}, ["rope_type", "dynamic"]),
    ({"rope_scaling": "yarn"}, ["rope_scaling", "an object or null", "'yarn'"]),
    ({"rope_scaling": {"rope_type": "yarn"}}, ["yarn", "factor", "4.0"]),
    ({"rope_scaling": YARN | {"factor": "4"}}, ["factor", "'4'"]),
    ({"rope_scaling": YARN | {"factor": 0.5}}, ["factor", "0.5"]),
    ({"rope_scaling": YARN | {"original_max_position_embeddings": -1}}, ["original_max_position_embeddings", "-1"]),
    ({"quantization_config": {"quant_method": "gptq"}}, ["quantization_config", "unquantized"]),
    ({"rope_theta": None}, ["rope_theta", "got None"]),
    ({"hidden_size": None, "vocab_size": None}, ["vocab_size must be an integer, 1 to 2147483647; got None"]),
    ({"num_hidden_layers": 0}, ["num_hidden_layers", "an integer, 1 to", "got 0"]),
    ({"hidden_size": 3584.0}, ["hidden_size", "3584.0"]),
    ({"vocab_size": "152064"}, ["vocab_size", "'152064'"]),
    ({"vocab_size": 10**18}, ["vocab_size", "an integer, 1 to"]),
    ({"num_key_value_heads": 3}, ["multiple", "28 and 3"]),
    ({"rms_norm_eps": "1e-6"}, ["rms_norm_eps must be a positive number, got '1e-6'"]),
    ({"tie_word_embeddings": "false"}, ["tie_word_embeddings must be true or false"]),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, ["rope_theta is 1000000.0 at top level"]),
    ({"rope_scaling": YARN, "rope_parameters": {"rope_theta": 1e6}}, ["and rope_parameters differ"]),
    ({"partial_rotary_factor": 0.5}, ["partial_rotary_factor must be 1, got 0.5"]),
    ({"rope_scaling": YARN, "original_max_position_embeddings": 1024}, ["is 1024 at top level"]),
    ({"layer_types": ["full_attention", "chunked_attention"]}, ["got layer_types chunked_attention"]),
    *(({"hidden_size": size}, [f"hidden_size must be a multiple of 32, got {size}"]) for size in (8, 48, 1000)),
    *(({"head_dim": size}, [f"head_dim must be even, 128 at most; got {size}"]) for size in (33, 256)),
]


@pytest.mark.parametrize("change, named", REFUSED, ids=[str(change) for change, _ in REFUSED])
def test_an_unsupported_config_is_refused_in_one_line(change, named):
    with pytest.raises(ConfigError) as caught:
        DecoderConfig.from_dict({**INSTRUCT, **change}, source="here/config.json")
    message = str(caught.value)
    assert message.startswith("here/config.json: ") and "\n" not in message
    assert [words for words in named if words not in message] == []


def test_a_config_that_is_none_is_a_user_error(tmp_path):
    (tmp_path / "list.json").write_text(json.dumps([INSTRUCT]))
    for name, message in (("list.json", "object, got list"), ("absent.json", "No such file"), ("", "Is a directory")):
        with pytest.raises(UserError, match=message):
            DecoderConfig.from_json(tmp_path / name)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_defaults_are_transformers(model_type):
    family = FAMILIES[model_type]
    name = family.architecture.replace("ForCausalLM", "Config")
    defaults = dict(family.defaults)
    unread = {} if model_type.startswith("qwen") else dict(sliding_window=0, max_window_layers=0)
    theirs = getattr(transformers, name)(use_sliding_window=True)
    for field, value in defaults.items():
        if field not in unread and value is not None:
            assert getattr(theirs, field) == value, field
    config = DecoderConfig.from_dict({"model_type": model_type, "sliding_window": None})
    assert config.num_key_value_heads == theirs.num_key_value_heads


@pytest.mark.parametrize("scaling, context", [(None, 32768), (YARN, 131072)], ids=["plain", "YaRN"])
def test_a_window_of_mistral_is_refused_where_a_text_exceeds_it(scaling, context):
    fields = {"model_type": "mistral", "max_position_embeddings": 32768, "rope_scaling": scaling}
    for window in (4096, context - 1):
        with pytest.raises(ConfigError, match=f"sliding_window {window}, which a text of {context}"):
            DecoderConfig.from_dict(fields | {"sliding_window": window})
    with pytest.raises(ConfigError, match="sliding_window 4096"):  # transformers' default
        DecoderConfig.from_dict(fields)
    for window in (context, None):
        config = DecoderConfig.from_dict(fields | {"sliding_window": window})
        assert config.context == context and not config.qkv_bias


@pytest.mark.parametrize("model_type, bias", [("qwen2", None), ("qwen3", False), ("llama", True), ("mistral", None)])
def test_a_config_knows_its_architecture_and_its_biases(model_type, bias):
    """Llama's attention_bias gives all four projections one. bias: what attention_bias may be beside false."""
    fields = {"model_type": model_type, "sliding_window": None}
    config = DecoderConfig.from_dict(fields | {"attention_bias": bias})
    assert config.architecture.lower() == f"{model_type}forcausallm"
    assert (config.qkv_bias, config.o_bias) == (bias is True or model_type == "qwen2", bias is True)
    others = ["mlp_bias"] if bias else ["mlp_bias", "attention_bias"]
    for field in others:
        with pytest.raises(ConfigError, match=f"{field} must be false"):
            DecoderConfig.from_dict(fields | {field: True})


@pytest.mark.parametrize("head_dim, width", [(8, 32), (48, 64), (64, 64), (80, 128), (100, 128), (128, 128)])
def test_a_head_takes_columns_that_attention_knows(head_dim, width):
    """stories15M has 48, danube 80 and 120, open_llama_3b 100."""
    assert DecoderConfig.from_dict({"model_type": "llama", "head_dim": head_dim}).head_width == width


OTHERS = (
    "quantization_config quantization dual_chunk_attention_config _name_or_path auto_map head_dim layer_types".split()
)
OF_SCALING = [*YARN, "type", "attention_factor", "beta_fast", "mscale", "truncate", "rope_theta"]
WRONG = None, True, -1, 0.5, float("nan"), "x", ["x"], {"x": 1}, [{}], {}


@pytest.mark.parametrize("scaling, name", [
    *((False, name) for name in (*INSTRUCT, *OTHERS, "rope_scaling", "rope_parameters")),
    *((True, name) for name in OF_SCALING),
])  # fmt: skip
def test_no_value_of_a_field_is_a_traceback(scaling, name):
    """scaling: the field is one of rope_scaling."""
    for value in WRONG:
        change = {"rope_scaling": YARN | {"mscale_all_dim": 1.0, name: value}} if scaling else {name: value}
        try:
            DecoderConfig.from_dict(INSTRUCT | change)
        except ConfigError as error:
            assert len(str(error).splitlines()) == 1


def written(tmp_path, content: dict) -> str:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(content))
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
        table_of(QWEN25_7B, 2, recipe)
