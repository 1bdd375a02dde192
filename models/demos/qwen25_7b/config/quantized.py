"""Quantized checkpoints: how config.json says so, and the name of the unquantized checkpoint."""

import re
from pathlib import Path
from typing import Any, Mapping, Optional

FIELDS = "quantization_config", "quantization", "compression_config"  # the second is MLX's
# Where the quantization begins in a checkpoint's name: Qwen2.5-7B-Instruct-GPTQ-Int4.
_METHOD = re.compile(
    r"[-_.](?:unsloth-|mlx\b|quantized\b|autoround|awq|gptq|aqlm|hqq|eetq|exl[23]|fp8|nvfp4|mxfp[48]|nf4|bnb|torchao"
    r"|quanto|int[48]|w\d+a\d+|[2-8]-?bit|q[2-8]\b)",
    re.IGNORECASE,
)
_HUB_ID = re.compile(r"[\w.-]*\w/[\w.-]+")
_PUBLISHED = {
    "Qwen": re.compile(r"Qwen(2|2\.5|3)(-Coder|-Math)?-[\d.]+B(-Instruct)?(-1M)?|QwQ-32B(-Preview)?"),
    "deepseek-ai": re.compile(r"DeepSeek-R1-Distill-Qwen-[\d.]+B"),
}


def quantization(fields: Mapping[str, Any], source: Path) -> Optional[str]:
    """Return why a quantized checkpoint is refused; None for others. source: the config.json."""
    field = next((name for name in FIELDS if fields.get(name) is not None), None)
    if field is None:
        return None
    method = fields[field].get("quant_method") if isinstance(fields[field], Mapping) else None
    name = unquantized(fields.get("_name_or_path"), source.absolute().parent)
    return (
        f"{field} is present{f' ({method})' if method else ''}; use the unquantized checkpoint"
        f"{f' {name}' if name else ''}, this port quantizes itself"
    )


def unquantized(origin: Any, directory: Path) -> Optional[str]:
    """Return the name of the unquantized checkpoint, if one of two places tells it.

    origin: config.json's _name_or_path, a hub id or a path. directory: the checkpoint's, also in the hub's cache.
    """
    origin = origin if isinstance(origin, str) else ""
    cached = [part for part in directory.parts if part.startswith("models--")]
    folder = cached[-1].split("--")[-1] if cached else directory.name
    if _HUB_ID.fullmatch(origin) and not _METHOD.search(origin):
        return origin
    for name in (origin, folder):
        short, *method = _METHOD.split(Path(name).name, maxsplit=1)
        owner = next((owner for owner, names in _PUBLISHED.items() if names.fullmatch(short)), None)
        if method or owner:
            return f"{owner}/{short}" if owner else short
    return None
