"""Tables and JSON of scores."""

import json
from pathlib import Path

from models.demos.qwen25_7b.config import Recipe
from models.demos.qwen25_7b.evaluation.score import Summary

HEADER = ("recipe", "KL mean", "KL max", "top-1", "top-5", "NLL", "NLL of Hugging Face", "tokens")
LEGEND = (
    "KL(Hugging Face in float32 || recipe) and NLL in nats a token; top-1, top-5: the recipe's first choice is Hugging "
    "Face's first, is among its first five."
)


def markdown(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table whose columns line up in a terminal, too."""
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    lines = [header, tuple("-" * width for width in widths), *rows]
    return "\n".join("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |" for line in lines)


def table(results: list[tuple[Recipe, Summary]]) -> str:
    return markdown(HEADER, [_row(recipe.name, summary) for recipe, summary in results])


def _row(name: str, s: Summary) -> tuple[str, ...]:
    agreed = (f"{s.top1:.2%}", f"{s.top5:.2%}")
    return name, f"{s.kl_mean:.3g}", f"{s.kl_max:.3g}", *agreed, f"{s.nll:.4f}", f"{s.reference_nll:.4f}", str(s.tokens)


def result_file(out: Path, subject: str, what: str, kind: str) -> Path:
    """Where a result of a model goes. Not by with_suffix: a model's name may have dots."""
    return out / f"{subject.replace(' ', '-')}-{what}.{kind}"


def write_json(file: Path, contents: dict) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(contents, indent=2) + "\n", encoding="utf-8")
