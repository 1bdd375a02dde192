"""make's targets and the scripts that make an environment: values with any characters, a Python without HOME, a .venv
without pip, a network that uv does not know.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
# target -> variables, and the options that they become
TARGETS = {
    "demo": dict(MESH="--mesh="),
    "eval": dict(MESH="--mesh=", MODEL="--model=", RECIPES="--recipes="),
    "bringup": dict(MODEL="--model=", OUT="--out=", REFERENCE="--reference=", QUESTIONS="--questions=", SIZE="--size="),
    "bundle": dict(MODEL="--model="),
    "serve": dict(MESH="MESH_DEVICE=", MODEL=""),
}
VALUES = (
    "a b",
    "it's",
    'a"b',
    "x; touch touched",
    "$(shell touch touched)",
    "`touch touched`",
    "$HOME/x",
    "a#b,c",
    "-x",
    "*",
)


def run(*command, **options) -> subprocess.CompletedProcess:
    return subprocess.run(command, capture_output=True, text=True, **options)


@pytest.mark.parametrize("by", ["argument", "environment"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_value_is_one_word_of_the_shell(tmp_path, target, by):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/vllm_venv.sh").touch()
    (tmp_path / ".venv-vllm/bin").mkdir(parents=True)
    (tmp_path / ".venv-vllm/bin/python").symlink_to(sys.executable)
    (tmp_path / "scripts/serve.py").write_text(
        "import os, sys; print(['MESH_DEVICE=' + os.environ['MESH_DEVICE'], *sys.argv])"
    )
    words = shlex.quote("import sys; print(sys.argv)")
    make = ["make", "--no-print-directory", "-f", f"{REPOSITORY}/Makefile", "-o", ".venv/ready", target]
    for value in VALUES:
        given = dict.fromkeys(TARGETS[target], value)
        arguments = [f"{name}={value}" for name in given] if by == "argument" else []
        environment = os.environ | (given if by == "environment" else {})
        done = run(*make, f"PYTHON={sys.executable} -c {words}", *arguments, cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        for got in map(eval, done.stdout.splitlines()):  # a line a command
            assert all(f"{option}{value}" in got for option in TARGETS[target].values()), (value, got)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("home", [{}, {"HOME": ""}], ids=["no HOME", "empty HOME"])
def test_a_python_is_found_without_a_home(home):
    found = run("sh", f"{REPOSITORY}/scripts/find_python.sh", env={"PATH": os.environ["PATH"]} | home)
    assert found.returncode == 0 and Path(found.stdout.strip()).exists(), found.stderr


VENV_PYTHON = """#!/bin/sh
here=$(dirname "$0")
case "$*" in
*"-m pip"*) [ -e "$here/pip" ] ;;
*ensurepip*) {ensurepip} ;;
*) exec {python} "$@" ;;
esac
"""


@pytest.mark.parametrize("ensurepip, status, words", [
    ('touch "$here/pip"', 0, ""), ("exit 1", 2, "has no pip, and its Python cannot install it: apt install"),
])  # fmt: skip
def test_an_environment_without_pip_gets_it_or_is_named(tmp_path, ensurepip, status, words):
    """As `python -m venv` leaves it that was interrupted, or found no ensurepip."""
    python = tmp_path / "venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(VENV_PYTHON.format(ensurepip=ensurepip, python=shlex.quote(sys.executable)))
    python.chmod(0o755)
    done = run("sh", f"{REPOSITORY}/scripts/make_venv.sh", f"{tmp_path}/venv")
    assert done.returncode == status and words in done.stderr and done.stderr.count("\n") == bool(words)
    assert (python.parent / "pip").exists() == (status == 0)


UV = {"works": "echo uv", "finds no index": "exit 2", "is not there": None}


@pytest.mark.parametrize("index", [(), ("torch",)], ids=["PyPI's torch", "TORCH_INDEX"])
@pytest.mark.parametrize("environment", [".venv", ".venv-python310"])
@pytest.mark.parametrize("uv", UV)
def test_pip_fills_an_environment_where_uv_cannot(tmp_path, uv, environment, index):
    files = {
        "requirements.txt": "",
        "pyproject.toml": "",
        "golden_mesh/pyproject.toml": "",
        "scripts/find_python.sh": f"echo {tmp_path}/python",
        "scripts/make_venv.sh": "",
        "scripts/remove_venv.sh": "",
        "scripts/fill_venv.sh": (REPOSITORY / "scripts/fill_venv.sh").read_text(),
        "python": "mkdir -p .venv-python310",
        ".venv/bin/python": 'case "$*" in *uv==*) exit 1 ;; *" install "*) echo pip ;; esac',
        ".venv/bin/uv": UV[uv],
    }
    for name, body in files.items():
        if body is not None:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
            (tmp_path / name).chmod(0o755)
    options = "-o", ".venv/ready", f"TORCH_INDEX={''.join(index)}"
    options = options[2:] if environment == ".venv" else options
    make = "make", "--silent", "-f", f"{REPOSITORY}/Makefile"
    done = run(*make, *options, f"{environment}/ready", cwd=tmp_path)
    installed = ["uv" if uv == "works" else "pip"] * (1 + len(index))
    assert (done.returncode, done.stdout.split()) == (0, installed), done.stderr
    assert (tmp_path / environment / "ready").exists()
