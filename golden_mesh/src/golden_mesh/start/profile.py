"""golden-mesh --profile: where a run's time goes, by part and by op. Printed to stderr at exit."""

import atexit
import functools
import sys
import time
from collections import Counter
from typing import Callable

LIBRARY, GOLDENS, PACKING = "the library", "golden functions", "rounding of results"
OPS_SHOWN = 12

_seconds: Counter[str] = Counter()  # part of the run -> seconds
_by_op: Counter[str] = Counter()
_calls: Counter[str] = Counter()
_inner: list[float] = []  # a stack: seconds of timed calls inside the timed call


def start() -> None:
    """Time the calls of this process from now on. Call it after the golden mesh was activated."""
    from golden_mesh.mesh import dispatch, steps

    dispatch.REAL_CALL = _timed(dispatch.REAL_CALL, LIBRARY)
    steps.pack = _timed(steps.pack, PACKING)
    run = _timed(steps.run, GOLDENS)

    def run_and_count(step) -> None:
        before = time.perf_counter()
        run(step)
        _by_op[step.golden.name] += time.perf_counter() - before
        _calls[step.golden.name] += 1

    dispatch.run = run_and_count
    dispatch.traces.run = run_and_count
    atexit.register(_print, time.perf_counter())


def _timed(function: Callable, part: str) -> Callable:
    """Add the function's time to a part, without the timed calls inside it."""

    @functools.wraps(function)
    def timed(*args, **kwargs):
        _inner.append(0.0)
        before = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            spent = time.perf_counter() - before
            _seconds[part] += spent - _inner.pop()
            if _inner:
                _inner[-1] += spent

    return timed


def _print(started: float) -> None:
    total = time.perf_counter() - started
    _seconds["everything else"] = total - sum(_seconds.values())
    print(f"golden mesh: {total:.1f} s after the import of ttnn", file=sys.stderr)
    for part, spent in _seconds.most_common():
        print(f"  {spent:8.2f} s  {100 * spent / total:3.0f} %  {part}", file=sys.stderr)
    print("values of ops, rounding included:", file=sys.stderr)
    for name, spent in _by_op.most_common(OPS_SHOWN):
        print(f"  {spent:8.2f} s  {_calls[name]:6} calls  {name}", file=sys.stderr)
