"""The model's dimensions, read from Hugging Face's config.json.

A field keeps its name in config.json. This module refuses features that the port does not compute, before a weight is
read: sliding windows, other rotary scalings than YaRN and Llama 3's, quantized weights, another architecture.
A model that ignored such a feature would still produce fluent and wrong text.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Optional

from ..errors import UserError, check_integer, is_integer, is_positive, shown, warn_once
from ..files import FileError, other_format, read_json
from .rope import Rope, RopeScaling, rope_scaling_of, theta_of


class ConfigError(UserError):
    """A config.json, or a number that belongs in one, that this port cannot run."""


# Defaults of transformers' configs, for fields that config.json lacks.
_QWEN = dict(
    vocab_size=151936, hidden_size=4096, intermediate_size=22016, num_hidden_layers=32, num_attention_heads=32,
    num_key_value_heads=32, hidden_act="silu", max_position_embeddings=32768, rms_norm_eps=1e-6, sliding_window=4096,
    max_window_layers=28,
)  # fmt: skip
_LLAMA = _QWEN | dict(
    vocab_size=32000, intermediate_size=11008, num_key_value_heads=None, max_position_embeddings=2048, bos_token_id=1,
    eos_token_id=2,
)  # fmt: skip
_MISTRAL = _LLAMA | dict(intermediate_size=14336, num_key_value_heads=8, max_position_embeddings=131072)


class _Family(NamedTuple):
    """What a model_type means. Nothing after this reader asks for its name."""

    architecture: str
    defaults: Mapping[str, Any]
    qkv_bias: bool = False
    head_norms: bool = False
    # A sliding_window is active without use_sliding_window.
    window_is_active: bool = False
    attention_bias: bool = False  # config.json's attention_bias gives q, k, v and o a bias


FAMILIES = {
    "qwen2": _Family("Qwen2ForCausalLM", _QWEN, qkv_bias=True),
    "qwen3": _Family("Qwen3ForCausalLM", _QWEN | dict(head_dim=128), head_norms=True),
    "llama": _Family("LlamaForCausalLM", _LLAMA, attention_bias=True),
    "mistral": _Family("MistralForCausalLM", _MISTRAL, window_is_active=True),
}
_KINDS = dict.fromkeys(("architectures", "layer_types"), list)
_KINDS |= dict.fromkeys(("rope_scaling", "rope_parameters", "dual_chunk_attention_config"), Mapping)
_KINDS |= dict.fromkeys(("tie_word_embeddings", "use_sliding_window"), bool)
_WORDS = {list: "a list", Mapping: "an object", bool: "true or false"}
_COUNTS = (
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads "
    "max_position_embeddings"
).split()
QUANTIZED = "quantization_config", "quantization", "compression_config"  # the second is MLX's
MOST = 2**31 - 1  # of a count
HEAD_WIDTHS = 32, 64, 128  # columns of a head that attention's operations take


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Dimensions of a Qwen2, Qwen3, Llama or Mistral model; checks itself when made."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: Optional[int] = None  # None: hidden_size // num_attention_heads is set instead
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Optional[RopeScaling] = None  # where the context is stretched
    max_position_embeddings: int
    architecture: str = "Qwen2ForCausalLM"  # transformers' class
    qkv_bias: bool = True
    o_bias: bool = False
    head_norms: bool = False  # whether each head of q and k is normalized before its rotation
    tie_word_embeddings: bool = False
    bos_token_id: Optional[int] = None
    eos_token_ids: tuple[int, ...] = ()  # eos_token_id, which may be a number or a list

    def __post_init__(self):
        for name in _COUNTS:
            check_integer(name, getattr(self, name), 1, MOST)
        if self.hidden_size % 32:
            raise ConfigError(
                f"hidden_size must be a multiple of 32, got {self.hidden_size}: a chip multiplies tiles of 32 x 32"
            )
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if heads % kv_heads:
            raise ConfigError(
                f"num_attention_heads must be a multiple of num_key_value_heads, got {heads} and {kv_heads}"
            )
        if not is_positive(self.rms_norm_eps):
            raise ConfigError(f"rms_norm_eps must be a positive number, got {shown(self.rms_norm_eps)}")
        for token in (self.bos_token_id, *self.eos_token_ids):
            if token is not None and not is_integer(token):
                raise ConfigError(f"bos_token_id and eos_token_id must be token ids, got {shown(token)}")
        if self.head_dim is not None:
            check_integer("head_dim", self.head_dim, 1, MOST)
        else:
            object.__setattr__(self, "head_dim", self.hidden_size // heads)
        if self.head_dim % 2 or self.head_dim > HEAD_WIDTHS[-1] or self.head_norms and self.head_dim not in HEAD_WIDTHS:
            few, even = f"one of {HEAD_WIDTHS}, where heads are normalized", f"even, {HEAD_WIDTHS[-1]} at most"
            raise ConfigError(
                f"head_dim must be {few if self.head_norms else even}; got {self.head_dim}: attention's plans take no "
                "other"
            )

    @property
    def head_width(self) -> int:
        """Columns of a head on a chip: its head_dim, then zeros."""
        return next(width for width in HEAD_WIDTHS if width >= self.head_dim)

    @property
    def context(self) -> int:
        """Tokens of the longest text: the trained context, or its length with YaRN."""
        return max(self.max_position_embeddings, self.rope_scaling.context if self.rope_scaling else 0)

    @property
    def centered_layers(self) -> tuple[int, ...]:
        """Layers whose keys are centered where their K bias has outliers: the first and the last.

        Qwen2 and Qwen2.5 have outliers there (docs/numerics.md). A memory budget is made before a bias is read, so the
        layers that may need a table are known without one.
        """
        return tuple(dict.fromkeys((0, self.num_hidden_layers - 1))) if self.qkv_bias else ()

    def centering_rope(self, layer: int) -> Optional[Rope]:
        """The rotary embedding by which the layer's keys are centered; None if it is not in centered_layers."""
        return Rope(self.rope_theta, self.rope_scaling, self.context) if layer in self.centered_layers else None

    @classmethod
    def from_json(cls, path: str | Path) -> "DecoderConfig":
        """Read a checkpoint's config.json."""
        try:
            fields = read_json(path)
        except FileError as error:
            other = None if Path(path).exists() else other_format(Path(path).parent)
            raise ConfigError(other or f"{error}; download the checkpoint's config.json again") from error
        return cls.from_dict(fields, source=str(path))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], source: str = "config.json") -> "DecoderConfig":
        """A config from config.json's contents, as transformers 4.x or 5.x writes them. source: for errors."""
        if not isinstance(fields, Mapping):
            raise ConfigError(f"{source}: must hold a JSON object, got {type(fields).__name__}")
        try:
            family = _family_of(fields)
            fields = family.defaults | dict(fields)
            _refuse_what_is_not_computed(fields, family)
            eos = fields.get("eos_token_id")
            ends = eos if isinstance(eos, list) else [eos]
            sizes = {name: fields[name] for name in _COUNTS}
            sizes["max_position_embeddings"] = _plain_positions(fields)
            if sizes["num_key_value_heads"] is None:
                sizes["num_key_value_heads"] = sizes["num_attention_heads"]
            config = cls(
                **sizes,
                head_dim=fields.get("head_dim"),
                rms_norm_eps=fields["rms_norm_eps"],
                rope_theta=theta_of(fields),
                rope_scaling=rope_scaling_of(fields),
                architecture=family.architecture,
                qkv_bias=family.qkv_bias or bool(fields.get("attention_bias")),
                o_bias=family.attention_bias and bool(fields.get("attention_bias")),
                head_norms=family.head_norms,
                tie_word_embeddings=bool(fields.get("tie_word_embeddings")),
                bos_token_id=fields.get("bos_token_id"),
                eos_token_ids=tuple(token for token in ends if token is not None),
            )
        except UserError as error:
            raise ConfigError(f"{source}: {error}") from error
        if fields.get("auto_map"):
            plain = f"the checkpoint is read as a plain {family.architecture}"
            warn_once(f"{source}: the model code that auto_map names is not run; {plain}")
        return config


def _family_of(fields: Mapping[str, Any]) -> _Family:
    kind = fields.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise ConfigError(
            f"model_type must be {', '.join(map(repr, FAMILIES))}, got {shown(kind)}; use a text checkpoint of Qwen2, "
            "Qwen2.5, Qwen3 (dense), Llama 2 or 3, or Mistral"
        )
    return FAMILIES[kind]


def _refuse_what_is_not_computed(fields: Mapping[str, Any], family: _Family) -> None:
    for name, kind in _KINDS.items():
        if fields.get(name) is not None and not isinstance(fields[name], kind):
            raise ConfigError(f"{name} must be {_WORDS[kind]} or null, got {shown(fields[name])}")
    # A reward model has a score head in place of the LM head. vLLM's plugin writes TTQwen2ForCausalLM.
    expected = family.architecture
    architectures = fields.get("architectures") or [expected]
    if not any(name in architectures for name in (expected, f"TT{expected}")):
        raise ConfigError(
            f"architectures of model_type {fields['model_type']!r} must be [{expected!r}], got {architectures!r}; use "
            "a checkpoint that generates text"
        )
    for name in ("attention_bias", "mlp_bias"):
        if fields.get(name) and not (name == "attention_bias" and family.attention_bias):
            raise ConfigError(f"{name} must be false: a checkpoint of this kind has no biases here")
    if fields["hidden_act"] not in ("silu", "swish"):  # two names of one function
        raise ConfigError(f"hidden_act must be 'silu', got {shown(fields['hidden_act'])}")
    sliding = _sliding_layers(fields, family)
    if sliding:
        raise ConfigError(
            f"{'sliding_window must be null' if family.window_is_active else 'use_sliding_window must be false'}: "
            f"sliding-window attention is not supported, got {sliding}"
        )
    for name in QUANTIZED:
        if fields.get(name) is not None:
            raise ConfigError(f"{name} is present; use the unquantized checkpoint, this port quantizes itself")


def _sliding_layers(fields: Mapping[str, Any], family: _Family) -> str:
    """Which layers have no full attention, in words; "" for none. Qwen2.5 sets an unused sliding_window."""
    kinds = fields.get("layer_types")
    if kinds is not None:
        others = sorted({f"{kind}" for kind in kinds if kind != "full_attention"})
        return f"layer_types {', '.join(others)}" if others else ""
    window = fields["sliding_window"]
    if family.window_is_active:
        scaling, longest = rope_scaling_of(fields), fields["max_position_embeddings"]
        if scaling and is_integer(longest):
            longest = max(longest, scaling.context)
        active = window is not None and not (is_integer(window) and window >= longest)
        return f"sliding_window {shown(window)}, which a text of {shown(longest)} tokens exceeds" * active
    if not fields.get("use_sliding_window") or window is None:
        return ""
    first, layers = fields["max_window_layers"], fields["num_hidden_layers"]
    for name in ("max_window_layers", "num_hidden_layers"):
        check_integer(name, fields[name], 0, MOST)
    return f"layers {first} to {layers - 1}" if first < layers else ""


def _plain_positions(fields: Mapping[str, Any]) -> int:
    """max_position_embeddings, as far as full attention goes.

    Qwen2.5-1M models compute longer texts with dual chunk attention. Within a chunk it equals full attention.
    """
    positions = fields["max_position_embeddings"]
    check_integer("max_position_embeddings", positions, 1, MOST)
    chunk = (fields.get("dual_chunk_attention_config") or {}).get("chunk_size", positions)
    check_integer("dual_chunk_attention_config's chunk_size", chunk, 1, MOST)
    return min(positions, chunk)


# Qwen2.5-7B-Instruct's config.json. The base model's differs in its end token (151643) and in
# max_position_embeddings (131072).
QWEN25_7B = DecoderConfig(
    vocab_size=152064, hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28,
    num_key_value_heads=4, head_dim=128, rms_norm_eps=1e-6, rope_theta=1e6, max_position_embeddings=32768,
    tie_word_embeddings=False, bos_token_id=151643, eos_token_ids=(151645,),
)  # fmt: skip
