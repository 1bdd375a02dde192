"""Imports go one way, in the model's folder they are relative, plans know no ttnn, and files are short."""

import ast
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "models/demos/qwen25_7b"
GOLDEN_MESH = REPOSITORY / "golden_mesh/src/golden_mesh"
LAB = REPOSITORY / "lab/qwen25_7b_lab"
BELOW = {  # what a room may import
    "config": [],
    "plans": ["config"],
    "weights": ["plans", "config"],
    "reference": ["weights", "plans", "config"],
    "tt": ["weights", "plans", "config"],
    "text": ["config"],
    "engine": ["tt", "text", "weights", "plans", "config"],
    "vllm": ["engine", "text", "tt", "weights", "plans", "config"],
    "cli": ["plans", "config"],
    "demo": ["cli", "engine", "text", "tt", "weights", "plans", "config", "reference"],
}
ANYWHERE = "errors", "files"
# Lowest first
GOLDEN_ROOMS = (
    "errors outputs program registry rounding sections signatures switches versions < arithmetic < hazards < mesh "
    "< goldens < compare < start < replay"
)
FILES = [file for file in FOLDER.rglob("*.py") if "extra_models" not in file.parts]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.relative_to(FOLDER)}")
def test_imports(file):
    *room, _ = file.relative_to(FOLDER).parts
    for node in ast.walk(ast.parse(file.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        assert not any(name.startswith("models.") for name in names), "a copy would import the original"
        assert room != ["plans"] or "ttnn" not in names
        if isinstance(node, ast.ImportFrom) and node.level == 2:
            target = (node.module or node.names[0].name).split(".")[0]
            assert target in (*ANYWHERE, *room, *BELOW[room[0]]), f"{room[0]} imports {target}"


def test_imports_of_the_golden_mesh():
    level = {name: i for i, names in enumerate(GOLDEN_ROOMS.split(" < ")) for name in names.split()}
    for name, own in level.items():
        room = GOLDEN_MESH / name
        for file in room.rglob("*.py") if room.is_dir() else [room.with_suffix(".py")]:
            for node in ast.walk(ast.parse(file.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom):
                    names = [f"{node.module}.{alias.name}" for alias in node.names]
                for imported in (each.split(".")[1] for each in names if each.startswith("golden_mesh.")):
                    assert level.get(imported, len(level)) <= own, f"{file.relative_to(GOLDEN_MESH)} imports {imported}"


def test_goldens_of_this_model_need_no_others():
    for file in (GOLDEN_MESH / "goldens").glob("*.py"):
        assert file.name == "__init__.py" or "other_models" not in file.read_text(), file


def imported(file: Path) -> set[str]:
    """The first words of all modules that a file imports by name."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.split(".")[0] for name in names}


def test_nothing_imports_the_lab():
    for folder in ("models", "golden_mesh", "scripts"):
        for file in (REPOSITORY / folder).rglob("*.py"):
            assert LAB.name not in imported(file), file


def test_only_the_golden_backend_imports_the_golden_mesh():
    """The model, its plans and the server run on cards where golden_mesh is not installed."""
    assert [file for file in FOLDER.rglob("*.py") if "golden_mesh" in imported(file)] == [FOLDER / "tt/mesh.py"]


def test_prices_know_nothing_of_the_model():
    """But for its commands, which are the lab's."""
    for file in (LAB / "prices").glob("*.py"):
        assert file.name in ("commands.py", "rows.py") or "models" not in imported(file), file


def test_no_file_is_long():
    files = (
        file
        for room in ("models", "lab", "scripts", "tests", "golden_mesh")
        for file in REPOSITORY.glob(f"{room}/**/*.py")
    )
    assert not [file for file in files if len(file.read_text().splitlines()) > 400]
