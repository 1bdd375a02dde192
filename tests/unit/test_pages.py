"""Pages name files that are there, and the table of mutants names texts."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = "", "models/demos/qwen25_7b", "lab", "lab/qwen25_7b_lab", "golden_mesh", "golden_mesh/src/golden_mesh"
FILES = [
    file for part in ("models", "golden_mesh", "tests", "lab", "scripts") for file in (ROOT / part).rglob("*.*")
] + list(ROOT.glob("*.*"))
NAMES = {file.name for file in FILES}
PAGES = sorted(f"{file.relative_to(ROOT)}" for file in FILES if file.suffix == ".md" and file.name != "CHANGELOG.md")
PATH = re.compile(r"`([\w.-]+/[\w./-]+|[\w-]+\.(?:py|sh|toml|md))`")
# Of other repositories, and what commands write.
ELSEWHERE = re.compile(r"tt-llk/|tests/ttnn/|bfp_format_utils|OUT/|(install|run)\.sh")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_files_that_are_there(page):
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    folder = (ROOT / page).parent
    gone = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if ":" not in link and not (folder / link).exists()]
    for name in PATH.findall(text):
        is_there = name in NAMES or any((place / name).exists() for place in (folder, *(ROOT / p for p in PLACES)))
        gone += [] if is_there or ELSEWHERE.match(name) else [name]
    assert not gone


def test_the_table_of_mutants_names_texts_that_are_there():
    """read_table ends the program at a text that a change took away."""
    assert runpy.run_path(f"{ROOT}/lab/mutants.py")["read_table"]()
