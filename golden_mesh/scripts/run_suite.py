"""Run another project's tests on the golden mesh, and print their outcomes as docs/others.md has them.

    python golden_mesh/scripts/run_suite.py N150 path/to/tests [path ...] [-- options of pytest]

Each test file has its own process. Nothing of the project is copied: the tests run where they are. `--most 14` takes
14 cases of each file, every n-th one. `--reports DIR` keeps pytest's report of each file, and a file that has one there
is not run again. This script is also the pytest plugin that chooses the cases.
"""

import argparse
import os
import signal
import sys
import tempfile
import warnings
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

import pytest

import golden_mesh

# The first text found in a failure's message names its outcome.
OUTCOMES = {
    "MissingGolden": "no golden",
    "does not know this call": "no golden for that argument",
    "HazardError": "a hazard",
    "UnknownMemory": "memory that was never written",
    "GoldenError": "refused by the golden mesh",
    "TT_FATAL": "refused by the library",
    "TT_THROW": "refused by the library",
    "incompatible function arguments": "arguments that this ttnn does not have",
    "has no attribute": "functions that this ttnn does not have",
    "ModuleNotFoundError": "modules that are not installed",
    "AssertionError": "other values or another shape",
}


def outcome(case: ET.Element) -> str:
    """Return the outcome of a <testcase> of pytest's report."""
    if case.find("skipped") is not None:
        return "skipped by the tests themselves"
    failure = case.find("failure") if case.find("failure") is not None else case.find("error")
    if failure is None:
        return "pass"
    message = f"{failure.get('message', '')}\n{failure.text or ''}"
    return next((name for text, name in OUTCOMES.items() if text in message), "other errors")


def outcomes(report: Path) -> Counter:
    return Counter(outcome(case) for case in ET.parse(report).iter("testcase"))


def pytest_addoption(parser) -> None:
    parser.addoption("--most", type=int, help="run this many cases of a file at most, evenly chosen")


def pytest_collection_modifyitems(config, items: list) -> None:
    most = config.getoption("--most")
    if most is not None and len(items) > most:
        items[:] = [items[len(items) * i // most] for i in range(most)]


def run(file: Path, system: str, options: list[str], seconds: int, reports: Path) -> Counter:
    """Run the file's tests in a process of their own; return the number of cases by outcome."""
    with tempfile.TemporaryDirectory() as directory:
        report = (reports or Path(directory)).resolve() / f"{file.parent.name}.{file.stem}.xml"
        if report.exists():
            return outcomes(report)
        command = ["-q", "--golden", system, "--golden-allow-skips", "-p", "no:cacheprovider"]
        command += [f"--junitxml={report}", *options, file.name]
        said = Path(directory) / "said.txt"
        child = os.fork()  # it has imported ttnn and torch
        if not child:
            with said.open("w") as stream:
                os.dup2(stream.fileno(), 1)
                os.dup2(stream.fileno(), 2)
            os.chdir(file.parent)
            signal.alarm(seconds)
            os._exit(pytest.main(command, plugins=[sys.modules[__name__]]))
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
            return Counter({f"files of more than {seconds} seconds": 1})
        if not report.exists():
            print(f"{file}: {said.read_text().strip()[-300:]}", file=sys.stderr)
            return Counter({"files that pytest could not run": 1})
        return outcomes(report)


def files_below(paths: list[Path]) -> list[Path]:
    found = [p for path in paths for p in ([path] if path.is_file() else path.rglob("test_*.py"))]
    return sorted(file.resolve() for file in found)


def table(counts: dict[Path, Counter]) -> str:
    """Return a Markdown table: an outcome a row, with its cases and the files that have it."""
    total = sum(counts.values(), Counter())
    lines = [f"| {sum(total.values())} cases in {len(counts)} files | cases | files |", "|---|---|---|"]
    for name, number in total.most_common():
        lines.append(f"| {name} | {number} | {sum(name in each for each in counts.values())} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("system", help="N150, N300, ... as --golden takes it")
    parser.add_argument("paths", nargs="+", type=Path, help="test files, or folders of them")
    parser.add_argument("--seconds", type=int, default=600, help="most time a file (default: 600)")
    parser.add_argument("--most", type=int, help="most cases a file, every n-th one (default: all)")
    parser.add_argument("--reports", type=Path, help="a folder with pytest's report of each file")
    words = sys.argv[1:]
    own, options = (words, [])
    if "--" in words:
        own, options = words[: words.index("--")], words[words.index("--") + 1 :]
    arguments = parser.parse_args(own)
    missing = [path for path in arguments.paths if not path.exists()]
    if missing:
        parser.error(f"there is no {missing[0]}")
    if arguments.most is not None:
        options = [f"--most={arguments.most}", *options]
    golden_mesh.activate(arguments.system)
    warnings.filterwarnings("ignore", "This process .* multi-threaded, use of fork")
    counts: dict[Path, Counter] = {}
    for file in files_below(arguments.paths):
        counts[file] = run(file, arguments.system, options, arguments.seconds, arguments.reports)
        said = ", ".join(f"{number} {name}" for name, number in counts[file].most_common())
        print(f"{file.name}: {said}", file=sys.stderr)
    print(table(counts))


if __name__ == "__main__":
    main()
