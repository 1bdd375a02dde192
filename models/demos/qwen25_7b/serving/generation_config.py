"""generation_config.json: how a checkpoint's makers want it sampled, as Hugging Face's generate reads it."""

from numbers import Real
from pathlib import Path
from typing import Any

from models.common.errors import UserError
from models.common.json_file import read_json
from models.demos.qwen25_7b.config.sampling import Sampling

AGAIN = "download the checkpoint again, or remove the file"
# What generate does where the file says nothing (transformers 4.57, GenerationConfig); do_sample false is greedy.
DEFAULTS = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "repetition_penalty": 1.0}
# Other fields that change which token is next, with the values at which they do not.
UNKNOWN = {
    "min_p": (0,),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "num_beams": (1,),
    "bad_words_ids": ([],),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "sequence_bias": ([], {}),
    "guidance_scale": (1,),
}


def read_generation_config(directory: Path) -> dict[str, Any]:
    """Empty where there is no such file: a checkpoint may do without."""
    file = Path(directory) / "generation_config.json"
    if not file.exists():
        return {}
    try:
        fields = read_json(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror}): {AGAIN}") from error
    except ValueError as error:
        raise UserError(f"{file} is not JSON ({error}): {AGAIN}") from error
    if not isinstance(fields, dict):
        raise UserError(f"{file} must hold a JSON object, got {type(fields).__name__}: {AGAIN}")
    return fields


def stop_ids(directory: Path) -> set[int]:
    """Where Qwen2.5 lists all tokens that end a text."""
    eos = read_generation_config(directory).get("eos_token_id")
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(type(id) is int for id in ids):  # not isinstance: true is an int, too
        file = Path(directory) / "generation_config.json"
        raise UserError(f"{file}: eos_token_id must be a token id or a list of them, got {eos!r}: {AGAIN}")
    return set(ids)


def default_sampling(directory: Path) -> Sampling:
    """What Hugging Face's generate would do with this checkpoint and no options; penalties are for greedy texts, too."""
    file, fields = Path(directory) / "generation_config.json", read_generation_config(directory)
    values = {name: fields[name] if fields.get(name) is not None else value for name, value in DEFAULTS.items()}
    for name, value in values.items():
        if not isinstance(value, int if name == "top_k" else Real) or isinstance(value, bool):
            raise UserError(
                f"{file}: {name} must be {'an integer' if name == 'top_k' else 'a number'}, got {value!r}: {AGAIN}"
            )
    if not fields.get("do_sample"):
        values["temperature"] = 0.0
    try:
        return Sampling(**values)
    except UserError as error:
        raise UserError(f"{file}: {error}: {AGAIN}") from error


def not_done(directory: Path) -> list[str]:
    """Fields of the file that change what generate writes, and that are not known here."""
    fields = read_generation_config(directory)
    return [name for name, off in UNKNOWN.items() if fields.get(name) is not None and fields[name] not in off]
