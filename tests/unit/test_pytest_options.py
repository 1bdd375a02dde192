"""pytest's own options here: --mesh, --size and --backend narrow what is collected."""

import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def collect(*options: str) -> subprocess.Popen:
    command = ["-m", "pytest", "--collect-only", f"{REPOSITORY}/tests/pcc/test_mlp.py", *options]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen([sys.executable, *command], cwd=REPOSITORY, **pipes)


def test_options_narrow_what_is_collected():
    narrowed = collect("--mesh", "n300", "--size", "7b", "--backend", "golden")
    bad_mesh = collect("--mesh", "N200")
    out, err = narrowed.communicate(timeout=300)
    words = set(re.findall(r"N150|N300|T3K|tiny|7b", " ".join(re.findall(r"\[.*?\]", out))))
    assert narrowed.returncode == 0 and words == {"N300", "7b"}, out + err
    out, err = bad_mesh.communicate(timeout=300)
    (line,) = [line for line in err.splitlines() if line.strip()]
    assert bad_mesh.returncode != 0 and "N200" in line and "T3K" in line
