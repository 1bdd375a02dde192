"""The launcher runs programs unchanged, as Python runs them."""

import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import golden_mesh
from golden_mesh.__main__ import environment
from golden_mesh.errors import GoldenMeshError
from golden_mesh.start.options import COMMANDS, parse

ROOT = Path(__file__).resolve().parents[1]


def test_the_example_runs_without_mentioning_the_golden_mesh(launch):
    done = launch("--system", "N150", ROOT / "examples/perceptron.py")
    assert done.returncode == 0, done.stderr
    chips, correlation = done.stdout.splitlines()
    assert chips == "1 chips" and float(correlation.split(": ")[1]) > 0.999


def test_looking_for_ttnn_before_its_import_changes_nothing(launch):
    look = "importlib.util.find_spec('ttnn').origin"
    code = f"import importlib.util; print({look}); import ttnn; print({look}, ttnn.GetNumAvailableDevices())"
    done = launch("-c", code)
    before, after = done.stdout.splitlines()
    assert after == f"{before} 2"


def test_a_program_is_main_as_under_python(launch, python, tmp_path):
    """Arguments, sys.path, __main__ and the options are those of `python script.py`; ttnn is not loaded."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/script.py").write_text(
        "import sys\nprint(sys.argv, sys.path[0], __name__, __file__, __spec__, sys.flags.optimize, sys.warnoptions)\n"
        "print([name for name in ('torch', 'ttnn', 'models') if name in sys.modules])\n"
    )
    words, options = ["elsewhere/script.py", "--system", "-m", "a b"], ["-O", "-W", "error"]
    plain, done = python(*options, *words), launch(*words, options=options)
    assert (done.stdout, done.stderr, done.returncode) == (plain.stdout, plain.stderr, 0)
    assert done.stdout.endswith("[]\n")
    combined = python("-W", "error", "-Om", "golden_mesh", *words)
    assert combined.stdout == plain.stdout


def test_a_module_is_run_from_the_current_directory(launch, tmp_path):
    (tmp_path / "theirs.py").write_text("import sys\nprint(__spec__.name, sys.path[0], sys.argv[1:])")
    assert launch("-m", "theirs", "x").stdout == f"theirs {tmp_path} ['x']\n"


@pytest.mark.parametrize("ending, status", [("raise KeyError('k')", 1), ("raise SystemExit(7)", 7)])
def test_tracebacks_and_exit_status_are_pythons(launch, python, tmp_path, ending, status):
    (tmp_path / "script.py").write_text(f"def f():\n    {ending}\n\nf()\n")
    done = launch("script.py")
    assert (done.returncode, done.stderr) == (status, python("script.py").stderr)


def test_signals_go_to_the_program(tmp_path):
    (tmp_path / "script.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(60)")
    command = [sys.executable, Path(golden_mesh.__file__).parent, "script.py"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"here\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM


CHILDREN = """
import multiprocessing, os, subprocess, sys

def chips(queue=None):
    import ttnn
    device = ttnn.open_device(device_id=0)
    x = ttnn.full((32, 32), 3.0, layout=ttnn.TILE_LAYOUT, device=device)
    value = ttnn.GetNumAvailableDevices(), ttnn.to_torch(ttnn.add(x, x))[0, 0].item()
    ttnn.close_device(device)
    return value if queue is None else queue.put(value)

if __name__ == "__main__" and sys.argv[1:] == ["again"]:
    print("exec", *chips())
elif __name__ == "__main__":
    contexts = [multiprocessing.get_context(way) for way in ("spawn", "forkserver")]
    queues = [context.Queue() for context in contexts]
    started = [context.Process(target=chips, args=(queue,)) for context, queue in zip(contexts, queues)]
    for process in started:
        process.start()
    code = "from script import chips; print('subprocess', *chips(), flush=True)"
    chips()  # the variables of this process's own golden mesh are inherited as well
    subprocess.run([sys.executable, "-c", code], check=True)
    for process, queue in zip(started, queues):
        print(*queue.get(timeout=200), flush=True)
        process.join()
    os.execv(sys.executable, [sys.executable, __file__, "again"])
"""


def test_processes_that_a_program_starts_are_on_the_same_mesh(launch, tmp_path):
    """No temporary directory is left, not even that of the process that os.exec replaced."""
    (tmp_path / "script.py").write_text(CHILDREN)
    (tmp_path / "temporary").mkdir()
    done = launch("--system=t3k", "script.py", TMPDIR=f"{tmp_path / 'temporary'}")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["subprocess 8 6.0", "8 6.0", "8 6.0", "exec 8 6.0"]
    assert not list((tmp_path / "temporary").glob("golden-mesh-*"))


@pytest.mark.parametrize("module, file", (("models", "models/__init__.py"), ("sitecustomize", "sitecustomize.py")))
def test_the_programs_own_modules_are_imported(launch, tmp_path, module, file):
    """tt-metal has a package `models`, and the golden mesh a sitecustomize."""
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("whose = 'theirs'")
    done = launch("-c", f"import ttnn, {module} as m; print(m.whose)", PYTHONPATH=f"{tmp_path}")
    assert done.stdout == "theirs\n", done.stderr


def test_a_program_may_activate_the_same_golden_mesh_itself(launch):
    code = "import golden_mesh; golden_mesh.activate({!r}); import ttnn; print(ttnn.GetNumAvailableDevices())"
    exact = "; from golden_mesh import switches; print(switches.current.sums)"
    done = launch("--system", "N150", "--sums", "exact", "-c", code.format("N150") + exact)
    assert (done.stdout, done.returncode) == ("1\nexact\n", 0), done.stderr
    other = launch("--system", "N150", "-c", code.format("N300"))
    assert "this process is a golden N150" in other.stderr and other.returncode == 1


REFUSED = {
    "": "nothing to run",
    "--system": "--system: expected one argument",
    "--system n151 x.py": "--system: invalid choice: 'n151'",
    "--mesh N150 x.py": "run has no option --mesh",
    "--hazards maybe x.py": "--hazards: invalid choice: 'maybe'",
    "--sums rough x.py": "--sums: invalid choice: 'rough'",
    "-m": "-m must be followed",
    "-q x.py": "run has no option -q",
    "nowhere.py": "no script 'nowhere.py'",
    "compare": "nothing to run",
    "--links 1 -c 0": "run has no option --links",
    "compare --below 2 -c 0": "--below: a PCC from 0 to 1 is needed, got '2'",
    "compare --html none/page.html -c 0": "none/page.html cannot be written",
    "record --to . -c 0": ". cannot be written",
    "compare --what-if fidelity=HiFi5 -c 0": "--what-if: fidelity=",
    "compare --links 1 -c 0": "compare has no option --links",
    f"record {__file__} --to ops.pt": "--to goes before the program",
    "replay nowhere.pt": "no record 'nowhere.pt'",
    f"replay {__file__} --calls -1": "--calls: 0 or a larger number is needed, got '-1'",
    "replay": "the following arguments are required: FILE",
    f"replay {__file__} --json none/rows.jsonl": "none/rows.jsonl cannot be written",
    f"compare --html {__file__} -c 0": "--html .*test_launcher.py: the file exists",
    f"compare --json {__file__} {__file__}": "--json .*test_launcher.py: the file exists",
    "compare --json new.txt --html ./new.txt -c 0": "new.txt is the file of --json",
    f"record --to {__file__} {__file__}": "--to .*test_launcher.py: the file exists",
    f"replay {__file__} --json {__file__}": "--json .*test_launcher.py: the file exists",
    f"replay {__file__} more": "replay has no option more",
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_bad_command_line_is_refused(words):
    with pytest.raises(GoldenMeshError, match=REFUSED[words]):
        parse(words.split())


PROGRAMS = {
    f"{__file__} --system -m x -- --sums": [__file__, "--system", "-m", "x", "--", "--sums"],
    "--system=t3k -m pytest -m slow --sums": ["-m", "pytest", "-m", "slow", "--sums"],
    "run --sums exact -c 0 -c 1 --help": ["-c", "0", "-c", "1", "--help"],
    "compare --system N150 - --below 3": ["-", "--below", "3"],
}


@pytest.mark.parametrize("words", PROGRAMS)
def test_all_words_after_the_program_are_the_programs(words):
    assert parse(words.split()).program == PROGRAMS[words]


def test_a_refusal_is_one_line_and_status_2(launch):
    for done in (launch("nowhere.py"), launch("-c", "0", options=["-E"]), launch(), launch("--mesh", "1", "x")):
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith("error: ") and len(done.stderr) < 200


def test_the_users_settings_are_kept():
    given_options = parse("compare --below 0.5 -c 0".split())
    given = {"TT_LOGGER_LEVEL": "info", "PYTHONPATH": os.pathsep.join(["/a", "/b"]), "OTHER": "1"}
    made = environment(given_options, given)
    assert made["GOLDEN_MESH_OBSERVER"] == '["golden_mesh.compare.report", 0.5, null, null, null]'
    assert made["TT_LOGGER_LEVEL"] == "info" and made["OTHER"] == "1"
    assert made["PYTHONPATH"].split(os.pathsep)[1:] == ["/a", "/b"]
    assert environment(given_options, made) == made, "a launcher in a launcher adds nothing"


def test_help_and_doctor_explain(launch):
    usage, report = launch("--help").stdout, launch("--doctor").stdout
    assert all(f"    {command}" in usage for command in COMMANDS)
    assert "--below" in launch("compare", "--help").stdout
    assert f"ttnn {version('ttnn')}" in report and "operations without a golden" in report


def test_doctor_names_what_is_not_like_a_chip_in_a_script(launch, tmp_path):
    (tmp_path / "script.py").write_text("ttnn.add(x, y)\nttnn.transformer.scaled_dot_product_attention(q, k, v)\n")
    *_, title, line = launch("--doctor", "script.py").stdout.splitlines()
    assert title.endswith("not like a chip's here: 1") and "scaled_dot_product_attention" in line
    assert "there is no script 'other.py'" in launch("--doctor", "other.py").stderr
