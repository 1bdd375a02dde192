"""generation_config.json: a checkpoint's default sampling, as Hugging Face's generate reads it."""

from numbers import Real
from pathlib import Path
from typing import Any

from models.common.errors import UserError
from models.common.json_file import read_json
from models.common.user_file import FileError
from models.demos.qwen25_7b.config.sampling import SamplingParams

AGAIN = "download the checkpoint again, or remove the file"
# The defaults of generate (transformers 4.57, GenerationConfig); do_sample false is greedy.
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
    """Return the fields of the file; empty if there is none."""
    file = Path(directory) / "generation_config.json"
    if not file.exists():
        return {}
    try:
        fields = read_json(file)
    except FileError as error:
        raise UserError(f"{error}; {AGAIN}") from error
    if not isinstance(fields, dict):
        raise UserError(f"{file} must hold a JSON object, got {type(fields).__name__}: {AGAIN}")
    return fields


def stop_ids(directory: Path) -> set[int]:
    """Return the token ids that end a text; Qwen2.5 lists all of them here."""
    eos = read_generation_config(directory).get("eos_token_id")
    ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if not all(type(id) is int for id in ids):  # not isinstance: true is an int, too
        file = Path(directory) / "generation_config.json"
        raise UserError(
            f"{file}: eos_token_id must be a token id or a list of them, got {eos!r}: {AGAIN}"
        )
    return set(ids)


def default_sampling(directory: Path) -> SamplingParams:
    """Return the parameters of Hugging Face's generate without options; greedy sampling has penalties too."""
    file, fields = Path(directory) / "generation_config.json", read_generation_config(directory)
    values = {
        name: fields[name] if fields.get(name) is not None else value
        for name, value in DEFAULTS.items()
    }
    for name, value in values.items():
        if not isinstance(value, int if name == "top_k" else Real) or isinstance(value, bool):
            raise UserError(
                f"{file}: {name} must be {'an integer' if name == 'top_k' else 'a number'}, got {value!r}: {AGAIN}"
            )
    if not fields.get("do_sample"):
        values["temperature"] = 0.0
    try:
        return SamplingParams(**values)
    except UserError as error:
        raise UserError(f"{file}: {error}: {AGAIN}") from error


def unsupported_fields(directory: Path) -> list[str]:
    """Return the fields of the file that change generated text and are not supported here."""
    fields = read_generation_config(directory)
    return [
        name
        for name, off in UNKNOWN.items()
        if fields.get(name) is not None and fields[name] not in off
    ]
