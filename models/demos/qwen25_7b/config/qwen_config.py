"""The model's dimensions, read from Hugging Face's config.json.

A field keeps its name in config.json. This module refuses features that the port does not compute:
sliding windows, scalings other than YaRN, quantized weights, another architecture. It does so before a weight is read.
A model that ignored such a feature would still produce fluent and wrong text.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, Optional

from ..errors import UserError, shown
from ..files import FileError, read_json
from .rope import Rope, RopeError, Yarn, yarn_of


class ConfigError(UserError):
    """A config.json, or a number that belongs in one, that this port cannot run."""


_COUNTS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)


@dataclass(frozen=True, kw_only=True)
class QwenConfig:
    """Dimensions of a Qwen2 or Qwen2.5 model; checks itself when made."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: Optional[int] = None  # None: hidden_size // num_attention_heads is set instead
    rms_norm_eps: float
    rope_theta: float
    yarn: Optional[Yarn] = None  # rope_scaling, where the context is stretched
    max_position_embeddings: int
    tie_word_embeddings: bool = False
    bos_token_id: Optional[int] = None
    eos_token_ids: tuple[int, ...] = ()  # eos_token_id, which may be a number or a list

    def __post_init__(self):
        for name in _COUNTS:
            _check_count(name, getattr(self, name))
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if heads % kv_heads:
            raise ConfigError(
                f"num_attention_heads must be a multiple of num_key_value_heads, got {heads} and {kv_heads}"
            )
        if self.head_dim is None:
            object.__setattr__(self, "head_dim", self.hidden_size // heads)

    @property
    def context(self) -> int:
        """Tokens of the longest text: the trained context, or its length with YaRN."""
        return max(self.max_position_embeddings, self.yarn.context if self.yarn else 0)

    @property
    def centered_layers(self) -> tuple[int, ...]:
        """Layers whose keys are centered where their K bias has outliers: the first and the last.

        Qwen2 and Qwen2.5 have outliers there (docs/numerics.md). A memory budget is made before a bias is read, so the
        layers that may need a table are known without one.
        """
        return tuple(dict.fromkeys((0, self.num_hidden_layers - 1)))

    def centering_rope(self, layer: int) -> Optional[Rope]:
        """The rotary embedding by which the layer's keys are centered; None for a layer that is not one of
        centered_layers."""
        rope = Rope(self.rope_theta, self.yarn, self.context)
        return rope if layer in self.centered_layers else None

    @classmethod
    def from_json(cls, path: str | Path) -> "QwenConfig":
        """Read a checkpoint's config.json."""
        try:
            fields = read_json(path)
        except FileError as error:
            raise ConfigError(f"{error}; download the checkpoint's config.json again") from error
        return cls.from_dict(fields, source=str(path))

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], source: str = "config.json") -> "QwenConfig":
        """Make a config from config.json's contents, as transformers 4.x or 5.x writes them.

        source: what an error calls the place that `fields` came from.
        """
        if not isinstance(fields, Mapping):
            raise ConfigError(f"{source}: must hold a JSON object, got {type(fields).__name__}")
        try:
            _refuse_what_is_not_computed(fields)
            required = [*_COUNTS, "rms_norm_eps"]
            missing = [name for name in required if fields.get(name) is None]
            if missing:
                raise ConfigError(
                    f"{', '.join(missing)} missing; use the config.json of the original checkpoint"
                )
            eos = fields.get("eos_token_id")
            sizes = {name: fields[name] for name in required}
            sizes["max_position_embeddings"] = _plain_positions(fields)
            return cls(
                **sizes,
                head_dim=fields.get("head_dim"),
                rope_theta=_rope_theta(fields),
                yarn=yarn_of(fields),
                tie_word_embeddings=fields.get("tie_word_embeddings", False),
                bos_token_id=fields.get("bos_token_id"),
                eos_token_ids=tuple(eos) if isinstance(eos, list) else (eos,) if eos else (),
            )
        except (ConfigError, RopeError) as error:
            raise ConfigError(f"{source}: {error}") from error


def _refuse_what_is_not_computed(fields: Mapping[str, Any]) -> None:
    if fields.get("model_type") != "qwen2":
        raise ConfigError(
            f"model_type must be 'qwen2', got {fields.get('model_type')!r}; use a Qwen2 or Qwen2.5 text checkpoint"
        )
    # A reward model has a score head in place of the LM head. vLLM's plugin writes TTQwen2ForCausalLM.
    architectures = fields.get("architectures") or ["Qwen2ForCausalLM"]
    if not {"Qwen2ForCausalLM", "TTQwen2ForCausalLM"} & set(architectures):
        raise ConfigError(
            f"architectures must be ['Qwen2ForCausalLM'], got {architectures!r}; use a checkpoint that generates text"
        )
    if fields.get("hidden_act") != "silu":
        raise ConfigError(f"hidden_act must be 'silu', got {fields.get('hidden_act')!r}")
    for name in ("rope_scaling", "rope_parameters"):
        if not isinstance(fields.get(name) or {}, Mapping):
            raise ConfigError(f"{name} must be an object or null, got {shown(fields[name])}")
    # Qwen2.5 sets sliding_window and leaves it unused; only the switch, or a layer that asks for it, counts.
    sliding = [kind for kind in fields.get("layer_types") or () if kind != "full_attention"]
    if fields.get("use_sliding_window") or sliding:
        raise ConfigError(
            "use_sliding_window must be false: sliding-window attention is not supported"
        )
    if fields.get("quantization_config") is not None:
        raise ConfigError(
            "quantization_config is present; use the unquantized checkpoint, this port quantizes itself"
        )


def _plain_positions(fields: Mapping[str, Any]) -> int:
    """max_position_embeddings, as far as full attention goes.

    Qwen2.5-1M models compute longer texts with dual chunk attention. Within a chunk it equals full attention.
    """
    dual = fields.get("dual_chunk_attention_config") or {}
    positions = fields["max_position_embeddings"]
    return min(positions, dual.get("chunk_size", positions))


def _rope_theta(fields: Mapping[str, Any]) -> float:
    """The rotary base: at top level in transformers 4.x, in rope_parameters in 5.x."""
    theta = (fields.get("rope_parameters") or fields).get("rope_theta")
    if theta is None:
        raise ConfigError("rope_theta missing; use the config.json of the original checkpoint")
    return theta


def _check_count(name: str, value: Any) -> None:
    if type(value) is not int or not 0 < value < 2**31:  # not isinstance: true is an int, too
        raise ConfigError(f"{name} must be a positive integer, got {shown(value)}")


# Qwen2.5-7B-Instruct's config.json. The base model's differs in its end token (151643) and in
# max_position_embeddings (131072).
QWEN25_7B = QwenConfig(
    vocab_size=152064,
    hidden_size=3584,
    intermediate_size=18944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    head_dim=128,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    max_position_embeddings=32768,
    tie_word_embeddings=False,
    bos_token_id=151643,
    eos_token_ids=(151645,),
)
