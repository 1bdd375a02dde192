"""generation_config.json: a checkpoint's stop tokens and its default sampling, read by transformers."""

from pathlib import Path
from typing import TYPE_CHECKING

from ..config.sampling import SamplingParams
from ..errors import UserError

if TYPE_CHECKING:
    from transformers import GenerationConfig

SAMPLING = "temperature", "top_k", "top_p", "repetition_penalty"
# Other fields that change which token is next.
UNSUPPORTED = (
    "min_p",
    "typical_p",
    "epsilon_cutoff",
    "eta_cutoff",
    "no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "num_beams",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "sequence_bias",
    "guidance_scale",
)


def read_generation_config(directory: Path) -> "GenerationConfig":
    """Return the checkpoint's generation config: transformers' defaults where the file is absent."""
    from transformers import GenerationConfig

    if not (directory / "generation_config.json").exists():
        return GenerationConfig()
    try:
        return GenerationConfig.from_pretrained(directory, local_files_only=True)
    except Exception as error:  # OSError, ValueError or TypeError, by the kind of damage
        raise UserError(
            f"{directory}/generation_config.json cannot be read ({error}): "
            "download the checkpoint again, or remove the file"
        ) from error


def stop_ids(config: "GenerationConfig") -> set[int]:
    """Return the token ids that end a text; Qwen2.5 lists all of them here."""
    eos = config.eos_token_id
    return set(eos if isinstance(eos, list) else [] if eos is None else [eos])


def default_sampling(config: "GenerationConfig") -> SamplingParams:
    """Return the sampling of Hugging Face's generate without options. Greedy sampling has penalties, too."""
    values = {name: getattr(config, name) for name in SAMPLING}
    if not config.do_sample:
        values["temperature"] = 0.0
    try:
        return SamplingParams(**values)
    except UserError as error:
        raise UserError(f"generation_config.json: {error}") from error


def unsupported_fields(config: "GenerationConfig") -> list[str]:
    """Return the fields that change generated text and are not supported here."""
    plain = type(config)()
    return [
        name
        for name in UNSUPPORTED
        if getattr(config, name, None) and getattr(config, name) != getattr(plain, name, None)
    ]
