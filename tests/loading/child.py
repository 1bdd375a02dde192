"""Loads in processes of their own.

They are forked from a server that has only imported what they need: a fork of pytest's own process would have the locks
that its threads held, without the threads that would let them go.
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
    """A process that loads a copy of the small checkpoint through a cache, once it has been told to go.

    before: called in it when the library has started, just before the load.
    """

    def __init__(self, model: Path, cache: Path, before: Callable[[], None] = os.getpid):
        self._connection, theirs = _processes.Pipe()
        self.process = _processes.Process(target=_load, args=(theirs, model, cache, before))
        self.process.start()
        theirs.close()
        self._connection.recv()  # it is ready

    def go(self) -> None:
        self._connection.send(None)

    def result(self) -> tuple[list[str], list[int]]:
        """What the load said, and the checksum of each piece. AssertionError, with its traceback: it raised."""
        found = self._connection.recv()
        self.process.join()
        assert not isinstance(found, str), found
        return found


def checksums(pieces: dict) -> list[int]:
    return [zlib.crc32(value.contiguous().view(torch.uint8).numpy()) for value in pieces.values()]


def loaded(model: Path, cache: Path, before: Callable[[], None] = os.getpid) -> tuple[list[str], list[int]]:
    """What a load in a process of its own said, and the checksum of each piece."""
    child = Child(model, cache, before)
    child.go()
    return child.result()


def _load(connection: Connection, model: Path, cache: Path, before: Callable[[], None]) -> None:
    import tests.loading.prepared  # noqa: F401 - in the server already, if that could import it
    from tests.loading.support import Said, load, made

    try:
        made(model)
        connection.send("ready")
        connection.recv()
        before()
        said = Said()
        pieces = load(model, cache, said=said)
        connection.send((list(said), checksums(pieces)))
    except BaseException:
        connection.send(traceback.format_exc())
        raise
