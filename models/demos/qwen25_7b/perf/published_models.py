"""Checkpoints of the Qwen2.5 family: the fields of their config.json that decide how a model is planned."""

from typing import Any

from models.common.errors import UserError
from models.common.markdown import markdown
from models.common.machines import MACHINES, MachineKind
from models.demos.qwen25_7b.config import MAX_USERS, QwenConfig, Recipe
from models.demos.qwen25_7b.plans.smallest_split import splits_that_fit

FAMILY = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 151643,
    "use_sliding_window": False,
}


def _size(
    layers: int, hidden: int, heads: int, kv_heads: int, mlp: int, vocab: int, tied: bool = False
) -> dict[str, Any]:
    return FAMILY | {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": mlp,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
    }


SIZES = {
    "0.5B": _size(24, 896, 14, 2, 4864, 151936, tied=True),
    "1.5B": _size(28, 1536, 12, 2, 8960, 151936, tied=True),
    "3B": _size(36, 2048, 16, 2, 11008, 151936, tied=True),
    "7B": _size(28, 3584, 28, 4, 18944, 152064),
    "14B": _size(48, 5120, 40, 8, 13824, 152064),
    "32B": _size(64, 5120, 40, 8, 27648, 152064),
    "72B": _size(80, 8192, 64, 8, 29568, 152064),
}


def _trained(context: int, theta: float, eps: float, eos: int) -> dict[str, Any]:
    return {
        "max_position_embeddings": context,
        "rope_theta": theta,
        "rms_norm_eps": eps,
        "eos_token_id": eos,
    }


CODER = _trained(32768, 1e6, 1e-6, 151645)
MATH = _trained(4096, 10000.0, 1e-6, 151645)
DISTILLED_FROM_MATH = _trained(131072, 10000, 1e-6, 151643)
DISTILLED = _trained(131072, 1e6, 1e-5, 151643)

# Hub id -> fields of config.json.
PUBLISHED: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": SIZES["0.5B"] | CODER,
    "Qwen/Qwen2.5-Coder-1.5B-Instruct": SIZES["1.5B"] | CODER,
    "Qwen/Qwen2.5-Coder-3B-Instruct": SIZES["3B"] | CODER,
    "Qwen/Qwen2.5-Coder-7B-Instruct": SIZES["7B"] | CODER,
    "Qwen/Qwen2.5-Coder-14B-Instruct": SIZES["14B"] | CODER,
    "Qwen/Qwen2.5-Coder-32B-Instruct": SIZES["32B"] | CODER,
    "Qwen/Qwen2.5-Math-1.5B-Instruct": SIZES["1.5B"] | MATH,
    "Qwen/Qwen2.5-Math-7B-Instruct": SIZES["7B"] | MATH,
    "Qwen/Qwen2.5-Math-72B-Instruct": SIZES["72B"] | MATH,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": SIZES["1.5B"]
    | DISTILLED_FROM_MATH
    | {"tie_word_embeddings": False},
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": SIZES["7B"] | DISTILLED_FROM_MATH,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B": SIZES["14B"] | DISTILLED,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": SIZES["32B"] | DISTILLED,
    "Qwen/QwQ-32B": SIZES["32B"] | _trained(40960, 1e6, 1e-5, 151645),
}


def models_table(models: dict[str, QwenConfig], recipe: Recipe) -> str:
    """The splits of each model on every machine, and below the table the reasons of refusals."""
    reasons: list[str] = []

    def cell(config: QwenConfig, kind: MachineKind) -> str:
        try:
            return "; ".join(map(str, splits_that_fit(config, recipe, kind)))
        except UserError as error:
            if f"{error}" not in reasons:
                reasons.append(f"{error}")
            return f"no ({reasons.index(f'{error}') + 1})"

    rows = [
        (name, *(cell(config, kind) for kind in MACHINES.values()))
        for name, config in models.items()
    ]
    title = (
        f"Recipe {recipe}. Chips of a replica (tp) x replicas (dp): users of a replica x the longest context of each. "
        f"The smallest tp that holds {MAX_USERS} users, then the largest tp where it holds a longer context."
    )
    table = markdown(("checkpoint", *MACHINES), rows)
    return "\n\n".join([title, table, "\n".join(f"{i}. {r}" for i, r in enumerate(reasons, 1))])


def published_models() -> dict[str, QwenConfig]:
    return {name: QwenConfig.from_dict(fields, name) for name, fields in PUBLISHED.items()}
