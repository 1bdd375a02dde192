"""Python programs for tests. Where the process has a server (tests/all.py), they are its forks and import no torch."""

import atexit
import importlib
import os
import pickle
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import types
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NoReturn

_server: socket.socket | None = None


def run_python(*words, cwd=None, env=None, input=None, text=True, timeout=300) -> subprocess.CompletedProcess:
    """subprocess.run([sys.executable, *words]) with its output captured.

    An option of Python's own, such as -O, makes it a process of its own in any case. So does subprocess.run.
    A fork that ends in os.execve of another such program, as golden-mesh does, is followed by a fork that runs it.
    """
    words, env = [str(word) for word in words], dict(os.environ if env is None else env)
    command = [sys.executable, *words]
    if _server is None or not _can_be_a_fork(words):
        options = dict(cwd=cwd, env=env, input=input, text=text, timeout=timeout)
        return subprocess.run(command, capture_output=True, **options)
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(input.encode() if isinstance(input, str) else input or b"")
        given.seek(0)
        request = pickle.dumps((words, f"{cwd or os.getcwd()}", env, timeout))
        socket.send_fds(_server, [request], [given.fileno(), out.fileno(), err.fileno()])
        status = os.waitstatus_to_exitcode(int(_server.recv(100)))
        if status == -signal.SIGALRM:
            raise subprocess.TimeoutExpired(command, timeout)
        results = []
        for file in (out, err):
            file.seek(0)
            results.append(file.read().decode() if text else file.read())
    return subprocess.CompletedProcess(command, status, *results)


def _can_be_a_fork(words: list[str]) -> bool:
    return words[0] in ("-c", "-m") or not words[0].startswith("-")


def start_server() -> int:
    """Make a fork of this process the server of run_python. Returns its pid."""
    global _server
    _server, requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        _server.close()
        os._exit(_serve(requests))
    requests.close()
    return pid


def stop_server(pid: int) -> None:
    global _server
    _server.close()
    _server = None
    os.waitpid(pid, 0)


def _serve(requests: socket.socket) -> int:
    """Run one program after the other, and answer with its wait status, until no process can ask any more."""
    while True:
        request, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not request:
            return 0
        following = os.memfd_create("following")
        while request:
            os.truncate(following, 0)
            pid = os.fork()
            if not pid:
                for number, file in enumerate(files):
                    os.dup2(file, number)
                os.closerange(3, following)
                os.closerange(following + 1, max(files) + 1)
                run_to_its_end(_run, following, *pickle.loads(request))
            status = os.waitpid(pid, 0)[1]
            request = os.pread(following, 1 << 20, 0)
        for file in (*files, following):
            os.close(file)
        requests.send(b"%d" % status)


def run_to_its_end(work, *arguments) -> NoReturn:
    """End this process with work's status or exception, as Python does, but leave its two million objects as they are.

    Python's own end takes two seconds for them.
    """
    try:
        status = work(*arguments)
    except SystemExit as end:
        status = end.code
    except BaseException as error:
        trace = error.__traceback__  # without the frames of this file and of runpy
        while trace.tb_next and trace.tb_frame.f_code.co_filename in (__file__, runpy.run_path.__code__.co_filename):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        status = 1
    if isinstance(status, str):
        print(status, file=sys.stderr)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if isinstance(status, str) else status or 0)


def _run(following: int, words: list[str], cwd: str, env: dict[str, str], timeout: int) -> None:
    """Run the Python program of a command line: its arguments, sys.path, environment and __main__.

    following: the file for the program that os.execve asks for.
    """
    execve = os.execve

    def follow(path, command, environment):
        if path != sys.executable or not _can_be_a_fork(command[1:]):
            execve(path, command, environment)
        os.pwrite(following, pickle.dumps(([*command[1:]], os.getcwd(), dict(environment), timeout)), 0)
        os._exit(0)

    os.execve = follow
    signal.alarm(timeout)
    os.chdir(cwd)
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(env)
    given = [entry for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = given + [entry for entry in sys.path[1:] if entry not in before]
    if PathFinder.find_spec("sitecustomize", given):
        sys.modules.pop("sitecustomize", None)
        importlib.import_module("sitecustomize")
    sys.orig_argv = [sys.executable, *words]
    if words[0] == "-m":
        sys.argv, sys.path[:0] = words[1:], [cwd]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif os.path.isdir(words[0]):
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
    else:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        if words[0] == "-c":
            sys.argv, sys.path[:0] = ["-c", *words[2:]], [""]
            code = compile(words[1], "<string>", "exec")
        else:
            main.__file__ = os.path.abspath(words[0])
            sys.argv, sys.path[:0] = words, [os.path.dirname(main.__file__)]
            code = compile(Path(words[0]).read_bytes(), main.__file__, "exec")
        exec(code, vars(main))
