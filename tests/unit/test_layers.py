"""Imports go one way, inside the folder they are relative, and plans know no ttnn."""

import ast
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "models/demos/qwen25_7b"
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
