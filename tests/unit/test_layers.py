"""Imports go one way, in the model's folder they are relative, plans know no ttnn, and files are short."""

import ast
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "models/demos/qwen25_7b"
GOLDEN_MESH = REPOSITORY / "golden_mesh/src/golden_mesh"
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
# Folder, a package that its files do not import, and those that do.
NEVER = [
    *((folder, "qwen25_7b_lab", ()) for folder in ("models", "golden_mesh", "scripts")),
    # It runs on cards where golden_mesh is not installed.
    ("models/demos/qwen25_7b", "golden_mesh", ("tt/mesh.py",)),
    ("models/demos/qwen25_7b/plans", "ttnn", ()),
    # Prices know nothing of the model.
    ("lab/qwen25_7b_lab/prices", "models", ("commands.py", "rows.py")),
]
ROOMS = "models", "lab", "scripts", "tests", "golden_mesh"
FILES = [file for file in FOLDER.rglob("*.py") if "extra_models" not in file.parts]


def imported(file: Path) -> list[str]:
    """What a file imports by its whole name: a.b of `import a.b`, a.b.c of `from a.b import c`."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    whole = (node for node in nodes if isinstance(node, ast.ImportFrom) and not node.level)
    return names + [f"{node.module}.{alias.name}" for node in whole for alias in node.names]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.relative_to(FOLDER)}")
def test_imports(file):
    *room, _ = file.relative_to(FOLDER).parts
    assert not any(name.startswith("models.") for name in imported(file)), "a copy would import the original"
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 2:
            target = (node.module or node.names[0].name).split(".")[0]
            assert target in (*ANYWHERE, *room, *BELOW[room[0]]), f"{room[0]} imports {target}"


@pytest.mark.parametrize("folder, package, but", NEVER)
def test_a_package_that_a_folder_does_not_import(folder, package, but):
    folder = REPOSITORY / folder
    importing = (file for file in folder.rglob("*.py") if package in {name.split(".")[0] for name in imported(file)})
    assert sorted(f"{file.relative_to(folder)}" for file in importing) == [*but]


def test_imports_of_the_golden_mesh():
    level = {name: i for i, names in enumerate(GOLDEN_ROOMS.split(" < ")) for name in names.split()}
    for name, own in level.items():
        room = GOLDEN_MESH / name
        for file in room.rglob("*.py") if room.is_dir() else [room.with_suffix(".py")]:
            for other in (each.split(".")[1] for each in imported(file) if each.startswith("golden_mesh.")):
                assert level.get(other, len(level)) <= own, f"{file.relative_to(GOLDEN_MESH)} imports {other}"


def test_goldens_of_this_model_need_no_others():
    for file in (GOLDEN_MESH / "goldens").glob("*.py"):
        assert file.name == "__init__.py" or "other_models" not in file.read_text(), file


def test_no_file_is_long():
    files = (file for room in ROOMS for file in REPOSITORY.glob(f"{room}/**/*.py"))
    assert not [file for file in files if len(file.read_text().splitlines()) > 400]
