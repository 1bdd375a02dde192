"""References for the module tests: Hugging Face's modules in float32 over the tested weights."""

import atexit
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Callable, Mapping, NamedTuple

import torch
from qwen25_7b_lab import rounded as in_recipe
from torch.nn import Module
from transformers import DynamicCache, PreTrainedModel
from transformers.models.qwen2.modeling_qwen2 import Qwen2RotaryEmbedding, apply_rotary_pos_emb

from models.demos.qwen25_7b.config import QWEN25_7B, DecoderConfig, Recipe
from models.demos.qwen25_7b.config.rope import RopeScaling
from models.demos.qwen25_7b.plans.rotary_pairs import centered_pairs, key_divisors, norm_divisors
from models.demos.qwen25_7b.reference.hf import hf_config, random_weights
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
from models.demos.qwen25_7b.weights.checkpoint import Checkpoint, tensor_shapes
from models.demos.qwen25_7b.weights.model_weights import BuildShard, builder
from tests.families import config_of, cut, hf_model

# The 7B's dims in two layers, the first with its K bias.
# Making the full vocabulary would take five times as long as making these layers.
TWO_LAYERS = replace(QWEN25_7B, num_hidden_layers=2, vocab_size=8192, bos_token_id=None, eos_token_ids=())
# Scores then have a standard deviation of about 1.5. A softmax of smaller scores is nearly a mean, which hides a wrong
# scale.
PEAK = 1.5

BUILDS = []  # of all references: tests/pcc/conftest.py empties their caches after each file
rounded_layer = lru_cache(maxsize=None)(in_recipe.rounded_layer)  # 0.9 GB for the 7B's dims


class KeysValues(NamedTuple):
    """Keys and values of one user and layer, [num_key_value_heads, tokens, head_dim] each.

    Keys are rotated, channels in Hugging Face's order.
    """

    keys: torch.Tensor
    values: torch.Tensor
    # of the chips' keys, [num_key_value_heads, 1, head_dim] each: what centered keys leave out, and divisors
    center: torch.Tensor
    divisors: torch.Tensor

    @property
    def chip_keys(self) -> torch.Tensor:
        """The keys as chips hold them, in Hugging Face's order."""
        return (self.keys - self.center) / self.divisors


class Case(NamedTuple):
    """Inputs of a module, and the results of Hugging Face's module."""

    x: torch.Tensor  # [users or tokens, hidden]
    past: list[KeysValues]  # each user's cache before a step
    expected: torch.Tensor  # like x
    in_format: torch.Tensor  # like x, from weights in the recipe's formats
    written: list[KeysValues]  # each user's new keys and values: of its token or its prompt


def attention(layer: Module) -> Callable:
    return lambda **arguments: layer.self_attn(**arguments)[0]


def whole(layer: Module) -> Callable:
    return layer


@dataclass(frozen=True, eq=False)
class Reference:
    """A model of Hugging Face. Its results are cached, because they do not depend on the mesh."""

    config: DecoderConfig
    weights: Mapping[str, torch.Tensor]  # by Hugging Face's names, bfloat16
    model: PreTrainedModel  # in float32
    layers: range  # layers with module tests
    build: BuildShard  # from the weights

    @classmethod
    def of(cls, config: DecoderConfig, weights: Mapping[str, torch.Tensor], layers: range = range(1)) -> "Reference":
        """The reference of a model with these weights."""
        build = lru_cache(maxsize=None)(builder(weights))  # for a file's benches: 1 GB for a layer of the 7B's dims
        BUILDS.append(build)
        atexit.register(build.cache_clear)  # else ttnn lists the shards as leaked
        return cls(config, weights, hf_model(config, weights).requires_grad_(False), layers, build)

    def layer(self, i: int) -> Module:
        return self.model.model.layers[i]

    def rounded(self, i: int, recipe: Recipe) -> Module:
        """Return layer i with weights in the recipe's formats."""
        formats = recipe.attention.format, recipe.mlp_in.format, recipe.mlp_out.format
        return rounded_layer(self.layer(i), self.config.centering_rope(i), *formats)

    def normed(self, i: int, *shape: int, seed: int = 0) -> torch.Tensor:
        """Return inputs of layer i's attention, [*shape, hidden], rounded to bfloat16."""
        return bf16(self.layer(i).input_layernorm(residual_stream(self.config, *shape, seed=seed)))

    def history(self, i: int, tokens: int, seed: int) -> KeysValues:
        """Return plausible cache contents of layer i for `tokens` tokens.

        They are noise around the biases, with K's outliers.
        """
        attention, config = self.layer(i).self_attn, self.config
        shape = config.num_key_value_heads, tokens, config.head_dim
        generator = torch.Generator().manual_seed(seed)
        keys, values = (torch.randn(shape, generator=generator) for _ in "kv")
        if config.head_norms:
            keys = attention.k_norm(keys)
        if config.qkv_bias:
            keys = keys + attention.k_proj.bias.view(-1, 1, config.head_dim)
            values = values + attention.v_proj.bias.view(-1, 1, config.head_dim)
        rotated = self.rotate(keys, torch.arange(tokens))
        center, divisors = self.of_chips(i)
        stored = bf16((rotated - center) / divisors)
        return KeysValues(stored * divisors + center, bf16(values), center, divisors)

    @lru_cache(maxsize=None)
    def of_chips(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return center and divisors of KeysValues for layer i."""
        attention, heads = self.layer(i).self_attn, self.config.num_key_value_heads
        if not self.config.qkv_bias:
            size = self.config.head_dim
            norm = attention.k_norm.weight if self.config.head_norms else torch.ones(size)
            return torch.zeros(heads, 1, size), norm_divisors(norm).expand(heads, 1, size)
        k_bias = attention.k_proj.bias.view(-1, self.config.head_dim)
        rope = self.config.centering_rope(i)
        divisors = torch.stack([key_divisors(head, rope) for head in k_bias])
        centered = torch.stack([centered_pairs(head, rope) for head in k_bias])
        factor = self.model.model.rotary_emb.attention_scaling
        return (factor * k_bias * centered)[:, None], divisors[:, None]

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotate x [heads, tokens, head_dim] in Hugging Face's order, token t at positions[t]."""
        return apply_rotary_pos_emb(x[None], x[None], *self.model.model.rotary_emb(x, positions[None]))[0][0]

    @lru_cache(maxsize=None)
    def case(
        self, recipe: Recipe, part: Callable, i: int, starts: tuple[int, ...], tokens: int = 1, user: int = 0
    ) -> Case:
        """Run `tokens` tokens of each user, after starts[user] tokens, through a part of layer i: attention or whole.

        user: the number of the first one, which decides on the values.
        """
        x, past, expected, written = self._as_given(part, i, starts, tokens, user)
        in_format, _ = self._run(part(self.rounded(i, recipe)), i, x, past)
        return Case(x.flatten(0, 1), past, expected.flatten(0, 1), in_format.flatten(0, 1), written)

    @lru_cache(maxsize=None)
    def _as_given(self, part: Callable, i: int, starts: tuple[int, ...], tokens: int, user: int) -> tuple:
        """(x [users, tokens, hidden], each user's past, result, written). It is computed once for all recipes."""
        shape = len(starts), tokens
        x = residual_stream(self.config, *shape, seed=user) if part is whole else self.normed(i, *shape, seed=user)
        past = [self.history(i, start, seed) for seed, start in enumerate(starts, user)]
        return (x, past, *self._run(part(self.layer(i)), i, x, past))

    def _run(
        self, module: Callable, i: int, x: torch.Tensor, past: list[KeysValues]
    ) -> tuple[torch.Tensor, list[KeysValues]]:
        """Run the module on tokens x [users, tokens, hidden]. Return the result, and each user's keys and values.

        Users at one position are one batch, which reads the weights once.
        """
        lengths, tokens = [history.keys.shape[1] for history in past], x.shape[1]
        result, written = torch.empty_like(x), {}
        for start in set(lengths):
            users, cache = [user for user, length in enumerate(lengths) if length == start], DynamicCache()
            if start:
                cache.update(*(torch.stack([past[user][which] for user in users]) for which in (0, 1)), i)
            rotation = self.model.model.rotary_emb(x, torch.arange(start, start + tokens)[None])
            seen = torch.ones(1, 1, tokens, start + tokens, dtype=torch.bool).tril(start)
            result[users] = module(
                hidden_states=x[users], position_embeddings=rotation, attention_mask=seen, past_key_values=cache
            )
            new = (both[:, :, start:] for both in (cache.layers[i].keys, cache.layers[i].values))
            written |= {user: KeysValues(*its, *self.of_chips(i)) for user, *its in zip(users, *new)}
        return result, [written[user] for user in range(len(x))]


def stretched(reference: Reference, yarn: RopeScaling) -> Reference:
    """Return the reference with a rotary embedding stretched by YaRN."""
    config = replace(reference.config, rope_scaling=yarn)
    parameters = {id(parameter): parameter for parameter in reference.model.parameters()}
    model = deepcopy(reference.model, parameters)  # shares them
    model.model.rotary_emb = Qwen2RotaryEmbedding(hf_config(config))
    return replace(reference, config=config, model=model)


EIGHT_B = {"qwen3": "Qwen3-8B", "llama": "Llama-3.1-8B"}


@lru_cache(maxsize=None)  # for the whole session: 3 GB for the 7B's dims
def reference(size: str, family: str = "qwen2") -> Reference:
    """Return the reference of a size, with queries PEAK times as large.

    - "tiny": The first layer of the trained small checkpoint, whose K bias has outliers, and the last; of another
      family two layers of its dims with random weights.
    - "7b": The dims of the family's 7B or 8B with random weights.
    """
    if size == "7b" or family != "qwen2":
        config = config_of(family, num_hidden_layers=2, tie_word_embeddings=False)
        if size == "7b":
            config = cut(EIGHT_B[family], layers=1) if family in EIGHT_B else TWO_LAYERS
        weights, layers = random_weights(config), range(1)
        if size == "tiny":
            # A trained layer changes the stream more. bfloat16 rounds the stream's outliers, in few channels here.
            for name in (name for name in weights if name.endswith("down_proj.weight")):
                weights[name] *= 2
    else:
        checkpoint = Checkpoint.open(SMALL_CHECKPOINT)
        config, last = checkpoint.config, checkpoint.config.num_hidden_layers - 1
        layers = range(0, last + 1, last)
        # Copies: the checkpoint's tensors are views of a file that may change while tests run.
        weights = {name: checkpoint.tensor(name).clone() for name in tensor_shapes(config)}
    for name in weights:
        if (".q_norm." if config.head_norms else ".q_proj.") in name:
            weights[name] *= PEAK
    return Reference.of(config, weights, layers)


def bf16(x: torch.Tensor) -> torch.Tensor:
    """Round x to bfloat16. Returns float32."""
    return x.bfloat16().float()


def residual_stream(config: DecoderConfig, *shape: int, seed: int = 0) -> torch.Tensor:
    """[*shape, hidden] like the stream between the 7B's layers: values around 1, and four outlier channels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, config.hidden_size, generator=generator)
    outliers = torch.randperm(config.hidden_size, generator=generator)[:4]
    x[..., outliers] *= torch.tensor([300.0, 120.0, 60.0, 30.0])
    return bf16(x)
