"""Loads in child processes.

The children are forked from a server process that only imports modules.
A fork of pytest's process could inherit locks of threads that do not exist in the child.
"""

import multiprocessing
import os
import traceback
import zlib
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Callable

import torch

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.loading.prepared"])


class Child:
    """A process that loads a copy of the small checkpoint through a cache, after go().

    Before the load, and with the library started, the process calls before().
    """

    def __init__(self, model: Path, cache: Path, before: Callable[[], None] = os.getpid):
        self._connection, theirs = _processes.Pipe()
        self.process = _processes.Process(target=_load, args=(theirs, model, cache, before))
        self.process.start()
        theirs.close()
        self._connection.recv()  # the child is ready

    def go(self) -> None:
        self._connection.send(None)

    def result(self) -> tuple[list[str], list[int]]:
        """Return the lines that the load printed, and the checksum of each shard.

        If the load raised, AssertionError has its traceback.
        """
        found = self._connection.recv()
        self.process.join()
        assert not isinstance(found, str), found
        return found


def checksums(shards: dict) -> list[int]:
    return [zlib.crc32(value.contiguous().view(torch.uint8).numpy()) for value in shards.values()]


def loaded(
    model: Path, cache: Path, before: Callable[[], None] = os.getpid
) -> tuple[list[str], list[int]]:
    """Load in a child process. Return the lines it printed, and the checksum of each shard."""
    child = Child(model, cache, before)
    child.go()
    return child.result()


def _load(connection: Connection, model: Path, cache: Path, before: Callable[[], None]) -> None:
    import tests.loading.prepared  # noqa: F401 - in the server already, if that could import it
    from tests.loading.support import Messages, load, made

    try:
        made(model)
        connection.send("ready")
        connection.recv()
        before()
        lines = Messages()
        shards = load(model, cache, lines=lines)
        connection.send((list(lines), checksums(shards)))
    except BaseException:
        connection.send(traceback.format_exc())
        raise
