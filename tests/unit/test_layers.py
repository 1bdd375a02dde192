"""Imports go one way, in the model's folder they are relative, plans know no ttnn, and files are short."""

import ast
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "models/demos/qwen25_7b"
GOLDEN_MESH = REPOSITORY / "golden_mesh/src/golden_mesh"
COMMANDS = "demo", "evaluation", "quantize", "perf", "bringup"
BELOW = {  # what a room may import
    "config": [],
    "plans": ["config"],
    "weights": ["plans", "config"],
    "reference": ["weights", "config"],
    "tt": ["weights", "plans", "config"],
    "text": ["config"],
    "engine": ["tt", "text", "weights", "plans", "config"],
    "vllm": ["engine", "text", "tt", "weights", "plans", "config"],
    "cli": ["plans", "config"],
} | {
    # perf times the vLLM class on the host
    command: [*COMMANDS, "cli", "engine", "text", "vllm" if command == "perf" else "", "tt", "weights", "plans", "config", "reference"]
    for command in COMMANDS
}  # fmt: skip
ANYWHERE = "errors", "files"
BELOW_GOLDEN_MESH = {
    "arithmetic": [],
    # one circle: a call's hazards are checked where it is dispatched, and the checks read the registry of goldens
    "hazards": ["mesh"],
    "mesh": ["hazards", "arithmetic"],
    "goldens": ["mesh", "hazards", "arithmetic"],
    "perf": ["mesh"],
    "compare": ["mesh", "arithmetic"],
    "start": ["goldens", "mesh", "hazards", "arithmetic"],
    "replay": ["start", "perf", "mesh"],
}
ANYWHERE_IN_GOLDEN_MESH = "errors", "rounding", "start.versions"
MOST_LINES = 400
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


@pytest.mark.parametrize("room", BELOW_GOLDEN_MESH)
def test_imports_of_the_golden_mesh(room):
    for file in (GOLDEN_MESH / room).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("golden_mesh."):
                name = node.module.removeprefix("golden_mesh.")
                below = name in ANYWHERE_IN_GOLDEN_MESH or name.split(".")[0] in (room, *BELOW_GOLDEN_MESH[room])
                assert below, f"{file.relative_to(GOLDEN_MESH)} imports {name}"


def test_no_file_is_long():
    rooms = ("models", "scripts", "tests", "tools", "golden_mesh")
    lines = {file: len(file.read_text().splitlines()) for room in rooms for file in (REPOSITORY / room).rglob("*.py")}
    assert not {f"{file}": n for file, n in lines.items() if n > MOST_LINES}
