"""generation_config.json: a checkpoint's stop tokens and its default sampling, read by transformers."""

from pathlib import Path
from typing import TYPE_CHECKING

from ..config.sampling import SamplingParams
from ..errors import UserError, is_integer, shown
from ..files import read_json

if TYPE_CHECKING:
    from transformers import GenerationConfig

SAMPLING = "temperature", "top_k", "top_p", "repetition_penalty"
# Other fields that change which token is next, with the value of each that changes nothing.
NOTHING_AT_0 = (
    "min_p top_h epsilon_cutoff eta_cutoff no_repeat_ngram_size encoder_no_repeat_ngram_size "
    "exponential_decay_length_penalty penalty_alpha bad_words_ids force_words_ids constraints suppress_tokens "
    "begin_suppress_tokens forced_bos_token_id forced_eos_token_id min_length min_new_tokens stop_strings "
    "sequence_bias dola_layers watermarking_config"
)
NOTHING_AT_1 = "typical_p encoder_repetition_penalty num_beams guidance_scale"
UNSUPPORTED = dict.fromkeys(NOTHING_AT_0.split(), 0) | dict.fromkeys(NOTHING_AT_1.split(), 1)


def read_generation_config(directory: Path) -> "GenerationConfig":
    """Return the checkpoint's generation config: transformers' defaults where the file is absent."""
    from transformers import GenerationConfig

    file = directory / "generation_config.json"
    if not file.exists():
        return GenerationConfig()
    try:
        # A null means that a field is not set. Of sampling, `default_sampling` knows what it means.
        fields = read_json(file).items()
        return GenerationConfig.from_dict(
            {name: value for name, value in fields if value is not None or name in SAMPLING}
        )
    except Exception as error:  # UserError, ValueError, TypeError or AttributeError, by the kind of damage
        raise UserError(
            f"{file} cannot be read ({error}): download the checkpoint again, or remove the file"
        ) from error


def stop_ids(config: "GenerationConfig") -> set[int]:
    """Return the token ids that end a text; Qwen2.5 lists all of them here."""
    eos = config.eos_token_id
    ids = set(eos if isinstance(eos, list) else [] if eos is None else [eos])
    if not all(is_integer(token) for token in ids):
        raise UserError(f"generation_config.json: eos_token_id must be token ids, got {shown(eos)}")
    return ids


def default_sampling(config: "GenerationConfig") -> SamplingParams:
    """Return the sampling of Hugging Face's generate without options. Greedy sampling has penalties, too."""
    values = {name: getattr(config, name) for name in SAMPLING}
    # transformers 4.57 has no filter where a file says null. 5.x leaves everything null, for `generate` to fill in.
    unset = dict(temperature=1.0, top_k=0 if type(config)().top_k else 50, top_p=1.0, repetition_penalty=1.0)
    values |= {name: unset[name] for name, value in values.items() if value is None}
    if not config.do_sample:
        values["temperature"] = 0.0
    try:
        return SamplingParams(**values)
    except UserError as error:
        raise UserError(f"generation_config.json: {error}") from error


def unsupported_fields(config: "GenerationConfig") -> list[str]:
    """Return the fields that change generated text and are not supported here."""
    values = {name: getattr(config, name, None) for name in UNSUPPORTED}
    return [name for name, value in values.items() if value and value != UNSUPPORTED[name]]
