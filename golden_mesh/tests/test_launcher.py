"""The launcher runs programs unchanged, as Python runs them."""

import os
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from golden_mesh.__main__ import Choice, environment, interpreter_options, split
from golden_mesh.errors import GoldenMeshError

ROOT = Path(__file__).resolve().parents[1]
GOLDEN_MESH = ROOT / "src/golden_mesh"


@pytest.fixture
def launch(tmp_path):
    """launch(*words): run python .../golden_mesh words in tmp_path and return the finished process.

    TMPDIR is a separate folder.
    """

    def launch(*words, python=(), **variables):
        (tmp_path / "temporary").mkdir(exist_ok=True)
        return subprocess.run(
            [sys.executable, *python, GOLDEN_MESH, *words],
            cwd=tmp_path, env=os.environ | {"TMPDIR": str(tmp_path / "temporary")} | variables,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    return launch


def test_the_example_runs_without_mentioning_the_golden_mesh(launch):
    example = ROOT / "examples/perceptron.py"
    done = launch("--system", "N150", "--profile", example)
    assert done.returncode == 0, done.stderr
    assert "golden functions" in done.stderr and "2 calls  ttnn.linear" in done.stderr
    chips, correlation = done.stdout.splitlines()
    assert chips == "1 chips"
    assert float(correlation.split(": ")[1]) > 0.999


def test_looking_for_ttnn_before_its_import_changes_nothing(launch):
    look = "importlib.util.find_spec('ttnn').origin"
    done = launch(
        "-c",
        f"import importlib.util; print({look}); import ttnn; print({look}, ttnn.GetNumAvailableDevices())",
    )
    assert done.returncode == 0, done.stderr
    before, after = done.stdout.splitlines()
    assert after == f"{before} 2"


def test_help_explains_every_option(launch):
    done = launch("--help")
    assert done.returncode == 0, done.stderr
    for option in (
        "--system",
        "--hazards",
        "--sums",
        "--profile",
        "--doctor",
        "--links",
        "--position",
        "--to",
    ):
        assert f"  {option} " in done.stdout


def test_a_program_is_main_as_under_python(launch, tmp_path):
    """Arguments, sys.path, __main__ and the interpreter's options equal those of `python script.py`. ttnn is
    not loaded.
    """
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/script.py").write_text(
        "import sys\nprint(sys.argv, sys.path[0], __name__, __file__, __spec__, sys.flags.optimize, sys.warnoptions)\n"
        "print([name for name in ('torch', 'ttnn', 'models') if name in sys.modules])\n"
    )
    words = ["elsewhere/script.py", "--system", "-m", "a b"]
    options = ["-O", "-W", "error"]
    plain = subprocess.run(
        [sys.executable, *options, *words], cwd=tmp_path, capture_output=True, text=True, check=True
    )  # fmt: skip
    done = launch(*words, python=options)
    assert (done.stdout, done.stderr, done.returncode) == (plain.stdout, plain.stderr, 0)
    assert done.stdout.endswith("[]\n")


def test_a_module_is_run_from_the_current_directory(launch, tmp_path):
    (tmp_path / "theirs.py").write_text(
        "import sys\nprint(__spec__.name, sys.path[0], sys.argv[1:])"
    )
    assert launch("-m", "theirs", "x").stdout == f"theirs {tmp_path} ['x']\n"


@pytest.mark.parametrize("ending, status", [("raise KeyError('k')", 1), ("raise SystemExit(7)", 7)])
def test_tracebacks_and_exit_status_are_pythons(launch, tmp_path, ending, status):
    (tmp_path / "script.py").write_text(f"def f():\n    {ending}\n\nf()\n")
    plain = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True
    )
    done = launch("script.py")
    assert (done.returncode, done.stderr) == (status, plain.stderr)


def test_signals_go_to_the_program(tmp_path):
    (tmp_path / "script.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(60)")
    process = subprocess.Popen(
        [sys.executable, GOLDEN_MESH, "script.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip
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
    done = launch("--system=t3k", "script.py")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == ["subprocess 8 6.0", "8 6.0", "8 6.0", "exec 8 6.0"]
    assert not list((tmp_path / "temporary").glob("golden-mesh-*"))


def test_the_program_may_have_a_package_named_models(launch, tmp_path):
    """tt-metal has such a package."""
    (tmp_path / "models/common").mkdir(parents=True)
    (tmp_path / "models/__init__.py").touch()
    (tmp_path / "models/common/__init__.py").write_text("whose = 'theirs'")
    (tmp_path / "models/common/errors.py").write_text("late = 'theirs'")
    (tmp_path / "early.py").write_text(
        "import models.common\nimport ttnn, models.common.errors\nprint(models.common.whose, models.common.errors.late)\n"
    )
    (tmp_path / "late.py").write_text(
        "import ttnn, models.common.errors\nprint(models.common.whose, models.common.errors.late)\n"
    )
    for script in ("early.py", "late.py"):
        done = launch(script)
        assert (done.stdout, done.returncode) == ("theirs theirs\n", 0), done.stderr


def test_a_program_may_activate_the_same_golden_mesh_itself(launch):
    code = "import golden_mesh; golden_mesh.activate({!r}); import ttnn; print(ttnn.GetNumAvailableDevices())"
    exact = "; from golden_mesh.sums import are_exact; print(are_exact())"
    done = launch("--system", "N150", "--sums", "exact", "-c", code.format("N150") + exact)
    assert (done.stdout, done.returncode) == ("1\nTrue\n", 0), done.stderr
    other = launch("--system", "N150", "-c", code.format("N300"))
    assert "this process is a golden N150" in other.stderr and other.returncode == 1


def test_the_sitecustomize_that_ours_hides_runs_too(launch, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text("import sys\nsys.seen = 1\nwhose = 'theirs'")
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")])
    done = launch(
        "-c", "import sys, sitecustomize; print(sys.seen, sitecustomize.whose)", PYTHONPATH=path
    )
    assert (done.stdout, done.returncode) == ("1 theirs\n", 0), done.stderr


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "nothing to run"),
        (["--system"], "--system wants one of N150, N300"),
        (["--system", "n151", "x.py"], "got 'n151'"),
        (["--mesh", "N150", "x.py"], "--mesh is no option"),
        (["--hazards", "maybe", "x.py"], "got 'maybe'"),
        (["--sums", "rough", "x.py"], "got 'rough'"),
        (["-m"], "-m wants"),
        (["-q", "x.py"], "-q is no option"),
        (["nowhere.py"], "no script 'nowhere.py'"),
    ],
)
def test_a_bad_command_line_is_refused(words, said):
    with pytest.raises(GoldenMeshError, match=said):
        split(words)


def test_a_refusal_is_one_line_and_status_2(launch):
    done = launch("nowhere.py")
    assert done.returncode == 2 and done.stdout == ""
    assert (
        done.stderr.startswith("error: there is no script 'nowhere.py'")
        and done.stderr.count("\n") == 1
    )
    isolated = launch("-c", "0", python=["-E"])
    assert isolated.returncode == 2 and isolated.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command, kept",
    [
        (["python", "-m", "golden_mesh", "x.py"], []),
        (["python", "-X", "dev", "-u", "golden_mesh", "x.py"], ["-X", "dev", "-u"]),
        (
            ["python", "-W", "error", "-um", "golden_mesh", "x.py"],
            ["-W", "error", "-u"],
        ),
        (["python", "-mgolden_mesh", "x.py"], []),
    ],
)
def test_options_of_the_interpreter_are_passed_on(command, kept):
    assert interpreter_options(command, 1) == kept


def test_the_users_settings_are_kept(monkeypatch):
    given = {"TT_LOGGER_LEVEL": "info", "PYTHONPATH": "/a:/b", "OTHER": "1"}
    made = environment(Choice("N150"), given)
    assert made["TT_LOGGER_LEVEL"] == "info" and made["OTHER"] == "1"
    assert made["PYTHONPATH"].split(":")[1:] == ["/a", "/b"]
    assert environment(Choice("N300"), made) == made | {"GOLDEN_MESH": "N300"}, (
        "a launcher in a launcher adds nothing"
    )


def test_the_doctor_prints_versions_and_unsupported_functions(launch):
    done = launch("--doctor")
    assert done.returncode == 0, done.stderr
    assert f"ttnn {version('ttnn')}" in done.stdout and "operations without a golden" in done.stdout
