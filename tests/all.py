"""Runs every test, or the jobs that are named: python tests/all.py [JOB ...].

A process is one machine, so each run of pytest is a process: a fork of this one, which has imported torch and
transformers but not ttnn. Three jobs run at a time, with one thread each, and a job's runs come one after the other.
Its output is printed when it ends.

No machine repeats another's tests: a T3K's rows of one and two chips are an N150 and an N300. Markers are in
pyproject.toml.
"""

import gc
import importlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import warnings

import pytest
from _pytest.mark.expression import Expression

LIBRARIES = (
    "torch transformers.generation transformers.models.qwen2.modeling_qwen2 networkx hypothesis programs".split()
)
AT_ONCE = 3
ENGINES = "tests/engine tests/vllm tests/evaluation"
MODULES = "tests/pcc/test_attention.py tests/pcc/test_decoder_layer.py tests/pcc/test_transformer.py"
# Rows of four chips without a ring. N150x4 runs every module on a ring of four.
LINE = "tests/pcc/test_decoder_layer.py tests/pcc/test_lm_head.py tests/pcc/test_sampler.py"
T3K = "--mesh T3K --size tiny --queues 2 -m 'not repeat'"
# At the 7B's dims the layer has every recipe, and its modules have fewer, on an N300. An N150 has the layer in one.
RECIPES = "lm_head or not (bf16 or bfp8)"
ALONE = "attention mlp rms_norm rotary embedding transformer long_context".split()
WITHOUT_ALONE = " ".join(f"--ignore tests/pcc/test_{name}.py" for name in ALONE)


def has_python310() -> bool:
    """Whether this machine has a CPython 3.10 beside the one that runs here."""
    find = ["sh", "scripts/find_python.sh", "3.10"]
    return sys.version_info >= (3, 11) and not subprocess.run(find, capture_output=True).returncode


# Name -> pytest's arguments, run by run; what begins with $ is a command. The longest come first. The 7B's dims take
# 12 GB at most, so they are one job, and the T3K's 5 GB come when they have ended.
JOBS = {
    "engines": (f"--mesh N300 {ENGINES}",),
    # What no other job has: a new folder of tests runs here.
    "n300": ("--mesh N300 -m 'not seven_b' " + " ".join(f"--ignore {folder}" for folder in ENGINES.split()),),
    "7b": (
        f"--mesh N300 -m 'seven_b and ({RECIPES} or decoder_layer or (attention and bfp8))'",
        f"--mesh N150 -m 'seven_b and not repeat and ({RECIPES})' {WITHOUT_ALONE} tests/pcc tests/splits tests/perf",
    ),
    # A Blackhole has other defaults.
    "golden": ("golden_mesh --golden N300", "golden_mesh/tests/goldens/test_kernel_defaults.py --golden P300"),
    "t3k-splits": (f"{T3K} tests/splits",),
    "n150": ("--mesh N150 -m 'not (seven_b or repeat)' tests/pcc tests/accuracy tests/splits tests/perf",),
    # What differs in Qwen3 and Llama 3.
    "families": (
        f"--mesh N300 --family qwen3 --family llama --family llama-bias {MODULES} "
        "-m 'not seven_b or (decoder_layer and bfp8 and not llama_bias)'",
    ),
    # A ring of four chips.
    "n150x4": ("--mesh N150x4 --size tiny --queues 2 -m 'not repeat' tests/pcc tests/splits",),
    "t3k": (f"{T3K} --tp 8 tests/pcc tests/perf",),
    # transformers 5.24 wants 3.11 or later. The other job is for a machine that has CPython 3.10, too.
    **({"transformers5": ("$ make --no-print-directory test-transformers5",)} if sys.version_info >= (3, 11) else {}),
    **({"python310": ("$ make --no-print-directory test-python310",)} if has_python310() else {}),
    "t3k-tp4": (f"{T3K} --tp 4 {LINE} tests/perf",),
    "8x7": (
        "--mesh N300 --size tiny --worker-dispatch -m 'not (seven_b or repeat)' tests/pcc/test_attention.py tests/perf",
    ),
    # The stages that run no tests of ours.
    "bringup": (
        f"$ {sys.executable} -m qwen25_7b_lab.bringup --mesh N300 --backend golden --size tiny "
        "--out generated/bringup --only machine,ops,speed",
    ),
    # Blackhole: slots on 11 columns of cores, two readers a bank of DRAM, rings of four and of eight.
    "blackhole": (
        "--mesh P150 -m 'not repeat and (every_slot and not seven_b or seven_b and decoder_layer and bfp8 and not "
        "one_tile or kv8 or few_cores)' "
        "tests/pcc/test_attention.py tests/pcc/test_decoder_layer.py tests/pcc/test_centered_keys.py "
        "tests/pcc/test_decode_widths.py",
        "--mesh P150x8 --queues 2 --size tiny -m galaxy tests/splits/test_replicas.py",
        "--mesh P300 --size tiny tests/perf/test_l1.py tests/splits/test_larger_sizes.py "
        "tests/splits/test_fits.py::test_the_budget_is_what_layers_take "
        "tests/pcc/test_decoder_layer.py::test_prefill_of_a_prompt",
    ),
    # Text from each of four replicas, the 7B's DRAM and the modeled step.
    "galaxy": ("--mesh GALAXY --queues 2 -m galaxy tests/splits tests/perf",),
    "ruff": ("$ make --no-print-directory check-ruff",),
    "n150x4-tp1": ("--mesh N150x4 --tp 1 --size tiny --queues 2 tests/splits/test_replicas.py",),
}


def fork(work, *arguments) -> int:
    """Run work(*arguments) in a fork of this process, which ends with its status. Return the fork's pid."""
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        sys.exit(work(*arguments))
    return pid


class EveryMarkSelects:
    """A mark that no test has would take tests out of a job without a word. `repeat`: conftest.py decides."""

    @staticmethod
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(config, items) -> None:
        text = config.option.markexpr
        marks = [{mark.name for mark in item.iter_markers()} for item in items]
        chosen = Expression.compile(text or "True").evaluate
        for name in set(re.findall(r"\w+", text)) - {"and", "or", "not", "repeat"}:
            having = (own for own in marks if name in own)
            if all(chosen(own.__contains__) == chosen((own - {name}).__contains__) for own in having):
                raise pytest.UsageError(f"-m {text!r}: the mark {name} decides on no test")


def run_pytest(words: list[str]) -> int:
    """Return pytest's status. run_python of the tests forks this process as it is now, without ttnn."""
    import programs

    server = programs.start_server()
    status = pytest.main(words, plugins=[EveryMarkSelects])
    programs.stop_server(server)
    return int(status)


def run_job(name: str, output) -> int:
    """Return 0 if every run of the job passes."""
    if output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    failed = 0
    for run in JOBS[name]:
        print(f"{name}: {run if run[0] == '$' else 'pytest ' + run}", flush=True)
        if run[0] == "$":
            failed |= subprocess.call(shlex.split(run[1:]))
        else:
            failed |= os.waitpid(fork(sys.modules["programs"].run_to_its_end, run_pytest, shlex.split(run)), 0)[1]
    return int(failed != 0)


def main(names: list[str]) -> int:
    if unknown := [name for name in names if name not in JOBS]:
        sys.exit(f"error: no job {unknown[0]}: choose from {', '.join(JOBS)}")
    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("ignore", DeprecationWarning)  # of forks: the other thread frees pyarrow's memory
    gc.disable()  # it would walk two million new objects again and again
    sys.path[0] = f"{os.getcwd()}/golden_mesh/tests"  # has programs.py
    for library in LIBRARIES:
        importlib.import_module(library)
    gc.freeze()
    sys.path[0] = os.getcwd()  # not tests/, whose vllm/ would be found as vLLM
    waiting, running, failed = names or list(JOBS), {}, []
    alone = len(waiting) == 1
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            name = waiting.pop(0)
            output = None if alone else tempfile.TemporaryFile("w+")
            running[fork(run_job, name, output)] = name, output, time.monotonic()
        pid, status, used = os.wait3(0)
        name, output, began = running.pop(pid)
        if output:
            output.seek(0)
            print(output.read(), end="")
        seconds = f"{time.monotonic() - began:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of processors"
        print(f"{name}: {'FAILED' if status else 'passed'} in {seconds}", flush=True)
        failed += [name] * (status != 0)
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return int(bool(failed))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # pytest has said where
        sys.exit(130)
