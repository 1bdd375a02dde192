"""The Python examples of the READMEs give the results that the pages state."""

import os
import re
from pathlib import Path

from programs import run_python

ROOT = Path(__file__).parents[2]
# A model that nobody closes: the program's exit is silent.
UNCLOSED = """
model = open_model(SMALL_CHECKPOINT, mesh="N300")
held = model.generate(questions[:1])
next(held)
"""
SAID = re.compile(r'It prints "(.+?)" and "(.+?)"')


def run_in(folder: Path, *words: str):
    # like pip install -e, with tests' programs.py
    path = os.pathsep.join(f"{ROOT}/{place}" for place in ("", "golden_mesh/src", "golden_mesh/tests"))
    environment = os.environ | {"PYTHONPATH": path, "XDG_CACHE_HOME": f"{folder}"}
    done = run_python(*words, cwd=folder, env=environment)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-3000:]
    return done


def test_one_module_by_hand(tmp_path):
    section = (ROOT / "models/demos/qwen25_7b/README.md").read_text().split("## One module by hand")[1]
    (example,) = re.findall(r"```python\n(.*?)```", section.split("\n## ")[0], flags=re.S)
    assert run_in(tmp_path, "-c", example).stdout.splitlines() == re.findall(r"It prints `(.+?)`", section)


def test_the_python_example(tmp_path):
    section = (ROOT / "README.md").read_text().split("## From Python")[1].split("\n## ")[0]
    (example,) = re.findall(r"```python\n(.*?)```", section, flags=re.S)
    done = run_in(tmp_path, "-c", example + UNCLOSED)
    assert done.stdout.splitlines() == [*SAID.search(section).groups()]
