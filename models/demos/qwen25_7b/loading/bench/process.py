"""What a process takes while something goes on: time, memory, bytes of the disk. From Linux's /proc/self."""

import threading
import time
from dataclasses import dataclass
from pathlib import Path

EVERY = 0.01  # seconds between two looks at the memory


@dataclass
class Usage:
    """Memory beyond what the process held before. Mapped files count apart: their pages are the system's to take back."""

    wall: float = 0.0  # seconds
    cpu: float = 0.0  # seconds of all threads
    peak: int = 0  # bytes of memory of its own
    mapped: int = 0  # bytes of mapped files in memory, at the most
    read: int = 0  # bytes fetched from the disk
    written: int = 0  # bytes sent to the disk
    chips: int = 0  # bytes, beside `peak`, that stand for chips' memory: a golden mesh's values


class Watch:
    """`with Watch() as usage:` fills it in at the end."""

    def __enter__(self) -> Usage:
        self.usage = Usage()
        self._own, self._files = _memory()
        self._io = _disk()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        self._thread.start()
        return self.usage

    def __exit__(self, *_) -> None:
        self.usage.wall, self.usage.cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        self._done.set()
        self._thread.join()
        self.usage.read, self.usage.written = (after - before for before, after in zip(self._io, _disk()))

    def _look(self) -> None:
        while True:
            own, files = _memory()
            self.usage.peak = max(self.usage.peak, own - self._own)
            self.usage.mapped = max(self.usage.mapped, files - self._files)
            if self._done.wait(EVERY):
                return


def _memory() -> tuple[int, int]:
    """Bytes of the process's own, shared memory included, and of mapped files."""
    fields = _fields("/proc/self/status")
    anonymous, files, shared = (1024 * int(fields[name].split()[0]) for name in ("RssAnon", "RssFile", "RssShmem"))
    return anonymous + shared, files


def _disk() -> tuple[int, int]:
    fields = _fields("/proc/self/io")
    return int(fields["read_bytes"]), int(fields["write_bytes"])


def _fields(file: str) -> dict[str, str]:
    return dict(line.split(":", 1) for line in Path(file).read_text().splitlines())
