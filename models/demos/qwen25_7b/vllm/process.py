"""A vLLM server as a child process: its exit status tells a supervisor what happened, and its stop closes the mesh.

vLLM's API server kills the engine, whose mesh stays open. Here the engines get the signal first, and the API server
answers 503 until they have ended: RequestCheck (qwen25_7b_requests.py) finds the file that STOP_FILE names.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Iterator, Mapping, Optional

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENGINE_SECONDS = 5.0  # for a step in flight and the closing of the mesh
SERVER_SECONDS = 1.5  # for the API server, whose streams have ended
TICK = 0.1
STOP_FILE = "QWEN25_7B_STOP_FILE"
ENGINE_TITLE = "VLLM::EngineCore"  # vLLM's, of the process that holds a mesh, or whose worker does


def run(arguments: list[str], environment: Optional[Mapping[str, str]], drain_seconds: float = 0) -> int:
    """Run a server until it ends or SIGINT, SIGTERM or SIGHUP stops it. No process of its session survives.

    drain_seconds: how long the engines may take to finish their requests (--shutdown-timeout).
    Returns 0 after a signal, else the server's status, or 1 where that is 0: its engine has died then.
    """
    stopped: list[int] = []
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # such as SIGHUP under nohup
            signal.signal(number, lambda number, _frame: stopped.append(number))
    with tempfile.TemporaryDirectory() as directory:
        stop_file = Path(directory) / "stop"
        environment = (os.environ if environment is None else environment) | {STOP_FILE: f"{stop_file}"}
        server = subprocess.Popen(arguments, env=environment, start_new_session=True)
        while not stopped and server.poll() is None:
            time.sleep(TICK)
        reason, began = stopped[:1], time.monotonic()
        stop_file.touch()
        killed = _stop(server, ENGINE_SECONDS + drain_seconds)
    if killed:
        print(f"error: killed what did not stop: {', '.join(killed)}", file=sys.stderr, flush=True)
    if reason:
        name = signal.Signals(reason[0]).name
        print(f"stopped by {name} after {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
        return 0
    if server.returncode == 0:
        print("error: the server ended by itself: its engine died (see above)", file=sys.stderr, flush=True)
    return abs(server.returncode) or 1


def _stop(server: subprocess.Popen, engine_seconds: float) -> list[str]:
    """Stop the engines, then the server. Return the titles of processes that had to be killed."""
    signalled: set[int] = set()
    deadline = time.monotonic() + engine_seconds
    while time.monotonic() < deadline:
        engines = {pid for pid, title in session_processes(server.pid) if title.startswith(ENGINE_TITLE)}
        if not engines:
            break
        for pid in engines - signalled:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, signal.SIGTERM)
        signalled |= engines
        time.sleep(TICK)
    if server.poll() is None:
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(SERVER_SECONDS)
    left = list(session_processes(server.pid))
    if left:
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    # Helpers such as multiprocessing's resource tracker end with their parents, often a moment later.
    return [title for _, title in left if title.startswith("VLLM::")]


def session_processes(leader: int) -> Iterator[tuple[int, str]]:
    """Yield (pid, command line) of each process of a session that has not ended."""
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            title = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            # A process that has ended and is not waited for has no command line.
            if title and os.getsid(pid) == leader:
                yield pid, title.strip()
