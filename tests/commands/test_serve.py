"""scripts/serve.py: the options that it gives to vLLM."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import serve

from models.demos.qwen25_7b.errors import UserError

SCRIPTS = Path(serve.__file__).parent


def config_of(options: list[str], mesh: str = "N300") -> dict:
    merged = serve.merged_options(options, mesh)
    assert merged.count("--additional-config") == 1
    return json.loads(merged[merged.index("--additional-config") + 1])


@pytest.mark.parametrize(
    "options",
    [
        ["--additional-config", '{"tt": {"trace_mode": "none"}, "x": 1}'],
        ['--additional-config={"tt": {"trace_mode": "none"}, "x": 1}'],
        ['--additional_config={"x": 1}', "--additional-config", '{"tt": {"trace_mode": "none"}}'],
    ],
)
def test_the_users_config_is_merged_with_the_scripts(options):
    """Setting the trace mode keeps sampling on the chips and the L1 for semaphores."""
    config = config_of(["--port", "1", *options])
    assert config == {"tt": {**serve.TT_CONFIG, "trace_mode": "none"}, "x": 1}


def test_the_users_value_wins():
    given = '{"tt": {"l1_small_size": 0, "sample_on_device_mode": "decode_only", "trace_region_size": 9}}'
    assert config_of(["--additional-config", given]) == json.loads(given)


@pytest.mark.parametrize(
    "mesh, options, fabric",
    [
        ("N300", [], None),
        ("T3K", [], "FABRIC_1D_RING"),
        ("N150x4", [], "FABRIC_1D_RING"),
        ("t3k", ["--port", "1"], "FABRIC_1D_RING"),
        ("T3K", ["--data-parallel-size=2"], None),
        ("T3K", ["--data_parallel_size", "2"], None),
        ("T3K", ["-dp", "2"], None),
        ("T3K", ["--additional-config", '{"tt": {"fabric_config": "FABRIC_1D"}}'], "FABRIC_1D"),
        ("TG", [], None),
    ],
)
def test_the_fabric_is_a_ring_where_a_replica_has_all_chips_of_a_t3k(mesh, options, fabric):
    assert config_of(options, mesh)["tt"].get("fabric_config") == fabric


@pytest.mark.parametrize("mesh", ["TG", "galaxy"])
def test_a_galaxy_has_a_replica_on_each_row_unless_the_user_says_otherwise(mesh):
    rows = ["--data-parallel-size", "4", "--api-server-count", "1"]
    merged = serve.merged_options([], mesh)
    assert merged[len(serve.DEFAULTS) : -2] == rows
    given = ["--data-parallel-size=8"]
    assert serve.merged_options(given, mesh)[len(serve.DEFAULTS) : -2] == given


@pytest.mark.parametrize(
    "options",
    [
        *(["--additional-config", text] for text in ("", "{", "[]", '{"tt": 1}')),
        ["--additional-config.tt.trace_mode", "all"],
    ],
)
def test_a_config_that_is_no_object_is_one_line(options):
    with pytest.raises(UserError, match="JSON object"):
        serve.merged_options(options, "N300")


@pytest.mark.parametrize("form", [["--config", "{}"], ["--config={}"]])
def test_options_of_a_file_win_over_the_defaults_and_the_command_line_over_both(tmp_path, form):
    """vLLM puts the options of its --config file before the command line, where the defaults would win."""
    file = tmp_path / "server.yaml"
    file.write_text(
        "model: ignored\nmax-model-len: 512\nmax_num_seqs: 8\nserved-model-name: [a, b]\n"
        "enable-auto-tool-choice: true\nenforce-eager: false\n"
        "additional-config: {tt: {trace_mode: none}}\n"
    )
    given = serve.expanded_options(["--max-num-seqs", "4", *(part.format(file) for part in form)])
    merged = serve.merged_options(given, "N300")
    for name, value in (("--max-model-len", "512"), ("--max-num-seqs", "4"), ("--block-size", "64")):
        assert serve.option_value(merged, name) == value
    assert given[-2:] == ["--max-num-seqs", "4"] and "--config" not in given
    assert given[given.index("--served-model-name") :][1:3] == ["a", "b"]
    assert "--enable-auto-tool-choice" in given and "--enforce-eager" not in given
    assert config_of(given)["tt"]["trace_mode"] == "none"


@pytest.mark.parametrize("text", [None, "[", "- 1"])
def test_a_config_file_that_is_none_is_one_line(tmp_path, text):
    file = tmp_path / "server.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UserError, match="--config .*server.yaml"):
        serve.expanded_options(["--config", f"{file}"])


def test_vllm_is_started_alone_where_there_is_no_golden_mesh(tmp_path, monkeypatch):
    """A bundle has none: without a card ttnn says so."""
    monkeypatch.setattr(serve, "HERE", tmp_path)
    assert serve.command("model", [], "N300")[1:3] == ["serve", "model"]


def test_the_supervisor_is_small():
    """torch in it would take memory for the server's life, and seconds of a stop."""
    program = (
        f"import sys; sys.path.insert(0, {str(SCRIPTS)!r}); import serve\n"
        "print([name for name in ('torch', 'ttnn', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("options, kept", [
    ([], True),
    (["--structured-outputs-config.disable_any_whitespace", "true"], True),
    (["--structured-outputs-config", '{"backend": "guidance"}'], False),
    (['--structured_outputs_config={"disable_fallback": true}'], False),
])  # fmt: skip
def test_a_users_structured_outputs_config_is_not_replaced(options, kept):
    """Beside a dotted option vLLM drops a JSON object."""
    assert (serve.BACKEND[0] in serve.merged_options(options, "N300")) == kept


SLOW_CHECK = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
import serve

def checked_options(*_):
    print(os.getpid(), flush=True)
    time.sleep(60)

serve.checked_options = checked_options
serve.serve("model", [])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_process_that_checks_a_model_ends_with_the_script(number):
    process = subprocess.Popen([sys.executable, "-c", SLOW_CHECK, SCRIPTS], stdout=subprocess.PIPE, text=True)
    checking = Path(f"/proc/{process.stdout.readline().strip()}")
    assert checking.exists()
    process.send_signal(number)
    process.wait(10)
    deadline = time.monotonic() + 10
    while checking.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not checking.exists()
