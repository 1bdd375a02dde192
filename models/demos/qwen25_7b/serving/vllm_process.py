"""A vLLM server as a child process: its exit status tells a supervisor what happened, and its stop closes the mesh.

vLLM 0.25.1 stops its API server first. The API server kills the engine, which leaves the mesh open, and then waits for
open streams that nothing continues. Here the engines get the signal first: they abort their requests, which ends the
streams, and close their meshes (qwen25_7b_worker.py). The API server gets the signal after them.
"""

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Callable, Iterator, Mapping, Optional

from models.common.terminal import complain

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENGINE_SECONDS = 5.0  # for a step in flight and the closing of the mesh
SERVER_SECONDS = 1.5  # for the API server, whose streams have ended
TICK = 0.1
PR_SET_PDEATHSIG = 1  # linux/prctl.h
ENGINE_TITLE = (
    "VLLM::EngineCore"  # vLLM's title for the process that holds a mesh, or whose worker does
)


def run(
    arguments: list[str], environment: Optional[Mapping[str, str]], drain_seconds: float = 0
) -> int:
    """Run a server until it ends or SIGINT, SIGTERM or SIGHUP stops it. No process of its session survives.

    drain_seconds: how long the engines may take to finish their requests (--shutdown-timeout).
    Returns 0 after a signal, else the server's status, or 1 where that is 0: its engine has died then.
    """
    stopped: list[int] = []
    # A signal that is ignored stays ignored, such as SIGHUP under nohup.
    ours = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    for number in ours:
        signal.signal(number, lambda number, _frame: stopped.append(number))
    server = subprocess.Popen(
        arguments, env=environment, start_new_session=True, preexec_fn=_end_with_parent(os.getpid())
    )
    while not stopped and _waited(server, 2 * TICK) is None:
        pass
    began = time.monotonic()
    by_itself = server.poll() is not None and not stopped
    killed = _stop(server, ENGINE_SECONDS + drain_seconds)
    if killed:
        complain(f"error: killed what did not stop: {', '.join(killed)}")
    if not by_itself:
        name = signal.Signals(stopped[0]).name
        complain(f"stopped by {name} after {time.monotonic() - began:.1f} s")
        return 0
    if server.returncode == 0:
        complain("error: the server ended by itself: its engine died (see above)")
    return abs(server.returncode) or 1


def _stop(server: subprocess.Popen, engine_seconds: float) -> list[str]:
    """Stop the engines, then the server. Return the titles of processes that had to be killed."""
    signalled: set[int] = set()

    def engines_are_gone() -> bool:
        engines = {
            pid for pid, title in session_processes(server.pid) if title.startswith(ENGINE_TITLE)
        }
        for pid in engines - signalled:
            _send(pid, signal.SIGTERM)
        signalled.update(engines)
        return not engines

    _wait_for(engines_are_gone, engine_seconds)
    if server.poll() is None:
        server.terminate()
    _waited(server, SERVER_SECONDS)
    left = list(session_processes(server.pid))
    if left:
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    # Helpers such as multiprocessing's resource tracker end with their parents, often a moment later.
    return [title for _, title in left if title.startswith("VLLM::")]


def session_processes(leader: int) -> Iterator[tuple[int, str]]:
    """Yield (pid, command line) of each process of a session that has not ended."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # "pid (name) state ppid pgrp session ...", where the name may hold spaces and parentheses
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            title = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        if int(session) == leader and state != "Z":
            yield int(folder.name), title.strip()


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # it has ended meanwhile


def _wait_for(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(TICK)


def _waited(server: subprocess.Popen, seconds: float) -> Optional[int]:
    try:
        return server.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _end_with_parent(parent: int) -> Callable[[], None]:
    """Return what the child calls before it runs: SIGTERM reaches it if its parent is killed."""
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it was killed before the call
            os._exit(1)

    return ask
