"""Limits of time and memory for code in a user's data, such as a chat template."""

import resource
import signal
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator


@contextmanager
def bounded(seconds: float, more_bytes: int) -> Iterator[None]:
    """Bound the processor time and the additional memory of the Python code in the block.

    Outside the main thread there is no bound, because Python handles no signals there.
    TimeoutError: the time is used up. MemoryError: the memory is used up.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = [
        limit for limit in (in_use + more_bytes, soft, hard) if limit != resource.RLIM_INFINITY
    ]
    before = signal.signal(signal.SIGVTALRM, _too_long)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (min(limits), hard))
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, before)


def _too_long(number: int, frame) -> None:
    raise TimeoutError("it does not end")
