"""The README's examples give the results that the README states."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SAID = re.compile(r'It prints "(.+?)" and "(.+?)"')


def test_the_python_example_prints_what_the_readme_says(tmp_path):
    section = (ROOT / "README.md").read_text().split("## From Python")[1].split("\n## ")[0]
    (example,) = re.findall(r"```python\n(.*?)```", section, flags=re.S)
    path = os.pathsep.join([f"{ROOT}", f"{ROOT}/golden_mesh/src"])  # like pip install -e
    environment = os.environ | {"PYTHONPATH": path, "XDG_CACHE_HOME": f"{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == list(SAID.search(section).groups())
