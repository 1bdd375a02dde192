"""Small programs for tests, which run through models.demos.qwen25_7b.cli.command.run as all commands do."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys, os, time; sys.path.insert(0, {repository!r})
from models.demos.qwen25_7b.cli import interrupt
from models.demos.qwen25_7b.cli.command import run, status_of
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.cli.terminal import say

def work():
{body}

run(lambda: status_of(work))
"""


def start(body: str, **options) -> subprocess.Popen:
    """Start a process that runs `body` as a command, in its own process group, as a shell does.

    options: of Popen.
    """
    indented = "\n".join(f"    {line}" for line in body.strip().splitlines())
    source = PROGRAM.format(repository=f"{REPOSITORY}", body=indented)
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    environment = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.Popen([sys.executable, "-c", source], **(pipes | {"env": environment} | options))
