"""A server as a child process: its status, the order of a stop, and that nothing survives it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from models.demos.qwen25_7b.vllm import process as vllm_process
from models.demos.qwen25_7b.vllm.process import run

# A server with one engine, as vLLM names it. Both print what they get. The server ends soon after its engine.
ENGINE = """
import signal, sys, time
def stop(*_):
    print("engine: SIGTERM", flush=True); {closing}; print("engine: mesh closed", flush=True); sys.exit()
signal.signal(signal.SIGTERM, stop)
print("up", flush=True)
time.sleep(60)
"""
SERVER = """
import os, signal, subprocess, sys, time
def stop(*_):
    stopping = os.path.exists(os.environ["QWEN25_7B_STOP_FILE"])
    print("server: SIGTERM" + " unannounced" * (not stopping), flush=True); engine.kill(); sys.exit()
signal.signal(signal.SIGTERM, stop)
engine = subprocess.Popen(["VLLM::EngineCore", "-c", {engine!r}], executable=sys.executable)
time.sleep(60)
"""
SUPERVISOR = """
import sys
from models.demos.qwen25_7b.vllm import process as vllm_process
vllm_process.ENGINE_SECONDS = 1.0
sys.exit(vllm_process.run([sys.executable, "-c", {server!r}], None))
"""


def start(closing: str = "time.sleep(0.3)") -> subprocess.Popen:
    """Start a supervisor with a server and an engine, in a process group. Return it when the engine is up."""
    server = SERVER.format(engine=ENGINE.format(closing=closing))
    process = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR.format(server=server)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout.readline() == "up\n", process.communicate()
    return process


@pytest.mark.parametrize("status, expected", [(0, 1), (7, 7)])
def test_a_server_that_ends_by_itself_has_failed(status, expected, capfd):
    """vLLM's API server exits with status 0 when its engine has died."""
    assert run([sys.executable, "-c", f"raise SystemExit({status})"], None) == expected
    assert ("engine died" in capfd.readouterr().err) == (status == 0)


@pytest.mark.parametrize("number, send", [
    (signal.SIGINT, os.kill), (signal.SIGTERM, os.kill), (signal.SIGHUP, os.kill), (signal.SIGINT, os.killpg),
])  # fmt: skip
def test_the_engine_closes_its_mesh_before_the_server_is_told(number, send):
    """The pipes end only when no process is left that holds them.

    killpg: a terminal sends Ctrl-C to the whole group. The API server would kill the engine.
    """
    process = start()
    send(process.pid, number)
    out, err = process.communicate(timeout=30)
    assert out.splitlines() == ["engine: SIGTERM", "engine: mesh closed", "server: SIGTERM"]
    assert process.returncode == 0
    assert f"stopped by {signal.Signals(number).name}" in err and "killed" not in err


def test_an_engine_that_hangs_is_killed():
    process = start(closing="time.sleep(60)")
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=30)
    assert out.splitlines() == ["engine: SIGTERM", "server: SIGTERM"]
    assert process.returncode == 0 and time.monotonic() - began < 10


def test_engines_of_a_server_that_died_are_stopped():
    dying = SERVER.replace("time.sleep(60)", "time.sleep(1.5); import os; os._exit(3)")
    server = dying.format(engine=ENGINE.format(closing="pass"))
    done = subprocess.run(
        [sys.executable, "-c", SUPERVISOR.format(server=server)], capture_output=True, text=True, timeout=30
    )  # fmt: skip
    assert done.stdout.splitlines() == ["up", "engine: SIGTERM", "engine: mesh closed"]
    assert done.returncode == 3


def test_a_stop_fits_into_ten_seconds():
    """Supervisors such as systemd and Kubernetes kill what takes longer than they were told."""
    assert vllm_process.ENGINE_SECONDS + vllm_process.SERVER_SECONDS < 10
