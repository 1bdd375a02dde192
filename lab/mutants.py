"""Small faults of the sources (mutants.tsv), and whether the tests that should notice them do.

    .venv/bin/python lab/mutants.py [--only 3,17] [-j 2] [--out FILE.json]

A mutant replaces one text in a copy of the working tree. It is "caught" if one of its tests fails there, else it
"SURVIVED". Its tests must pass without it.

Columns of the table: file; old text, which the file has once; new text; arguments of pytest. \\n is a new line.
"""

import argparse
import json
import multiprocessing
import os
import queue
import shlex
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".tsv")
SECONDS = 400  # after which a run hangs
# A child of this process has these libraries already, whose import takes longer than most tests.
FORKS = multiprocessing.get_context("forkserver")
LIBRARIES = "pytest", "hypothesis", "torch", "transformers.generation", "transformers.models.qwen2.modeling_qwen2"


class Mutant(NamedTuple):
    number: int
    file: str
    old: str
    new: str
    tests: str

    @property
    def selection(self) -> tuple[str, ...]:
        """pytest's folder and arguments."""
        if self.file.startswith("golden_mesh/"):
            return "golden_mesh", "--golden", "N300", *shlex.split(self.tests)
        return ".", "--mesh", "N300", "-m", "not seven_b", *shlex.split(self.tests)


def read_table() -> list[Mutant]:
    rows = (line.split("\t") for line in TABLE.read_text().splitlines()[1:])
    mutants = [Mutant(i, *(text.replace("\\n", "\n") for text in row)) for i, row in enumerate(rows, 1)]
    for mutant in mutants:
        found = (ROOT / mutant.file).read_text().count(mutant.old)
        if found != 1 or mutant.old == mutant.new:
            sys.exit(f"mutant {mutant.number}: {mutant.file} has {mutant.old!r} {found} times")
    return mutants


def run_pytest(copy: Path, selection: tuple[str, ...], output: Path) -> None:
    """In a child process, which ends with pytest's status."""
    with output.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    folder, *arguments = selection
    sources = [f"{copy / 'golden_mesh/src'}", f"{copy / 'lab'}", f"{copy}"]
    os.environ["PYTHONPATH"] = os.pathsep.join(sources)
    os.chdir(copy / folder)
    sys.dont_write_bytecode = False  # most files are alike in all runs
    sys.path[:0] = [*sources, os.getcwd()]
    sys.exit(pytest.main(["-x", "-o", "addopts=-q -p no:cacheprovider", *arguments]))


def first_failure(copies: "queue.Queue[Path]", selection: tuple[str, ...], mutant: Mutant | None = None) -> str:
    """Run the tests in a copy. Return the first test that fails, "" if they pass."""
    copy = copies.get()
    file, output = copy / mutant.file if mutant else None, copy.with_suffix(".txt")
    try:
        if file:
            file.write_text(file.read_text().replace(mutant.old, mutant.new))
        process = FORKS.Process(target=run_pytest, args=(copy, selection, output))
        process.start()
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
            return f"more than {SECONDS} s"
        lines = output.read_text().strip().splitlines()
        failed = [line for line in lines if line.startswith(("FAILED ", "ERROR "))] or lines[-1:]
        return f"{failed[0]:.200}" if process.exitcode else ""
    finally:
        if file:
            shutil.copy2(ROOT / mutant.file, file)
        copies.put(copy)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: set(map(int, text.split(","))), help="numbers of mutants: N,M")
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    parser.add_argument("-j", dest="jobs", type=int, default=1, help="runs at a time")
    options = parser.parse_args()
    if options.out and options.out.exists():
        parser.error(f"--out {options.out} exists: give a new name")
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    FORKS.set_forkserver_preload(list(LIBRARIES))
    mutants = [mutant for mutant in read_table() if not options.only or mutant.number in options.only]
    results = []
    with tempfile.TemporaryDirectory() as directory, ThreadPoolExecutor(options.jobs) as threads:
        copies: "queue.Queue[Path]" = queue.Queue()
        for i in range(options.jobs):
            copies.put(
                Path(shutil.copytree(ROOT, Path(directory) / f"{i}", ignore=shutil.ignore_patterns(".git", ".venv*")))
            )
        run = partial(first_failure, copies)
        selections = list(dict.fromkeys(mutant.selection for mutant in mutants))
        broken = set()
        for selection, failed in zip(selections, threads.map(run, selections)):
            print(f"without a mutant, {shlex.join(selection)}: {failed or 'passes'}", flush=True)
            broken |= {selection} if failed else set()
        mutants = [mutant for mutant in mutants if mutant.selection not in broken]
        began = time.monotonic()
        for mutant, failed in zip(mutants, threads.map(lambda m: run(m.selection, m), mutants)):
            result = f"caught by {failed}" if failed else f"SURVIVED {mutant.tests}"
            print(f"{mutant.number:3} {mutant.file}: {result}", flush=True)
            results.append({**mutant._asdict(), "caught": bool(failed), "by": failed})
    caught = sum(result["caught"] for result in results)
    print(f"{caught} of {len(results)} caught in {time.monotonic() - began:.0f} s")
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))
    return 0 if caught == len(results) and not broken else 1


if __name__ == "__main__":
    sys.exit(main())
