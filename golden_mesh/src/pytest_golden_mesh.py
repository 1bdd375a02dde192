"""The pytest plugin of the golden mesh: pytest --golden N300. Without the option it does nothing.

It imports golden_mesh only when the option is given, so that `pythonpath` can name another copy of the package. With
pytest-xdist every worker is a golden mesh.
"""

import contextlib
import os
import re
import sys
from pathlib import Path

import pytest


def pytest_addoption(parser):
    add = parser.getgroup("golden mesh").addoption
    system = "run ttnn on the golden mesh of this system (N150, N300, P150, ... as golden-mesh --doctor lists them); "
    add("--golden", metavar="SYSTEM", help=f"{system}auto: of MESH_DEVICE")
    hazards = "calls that a chip gets wrong: warn, error, or default (as HAZARDS.md says)"
    add("--golden-hazards", metavar="RESPONSE", help=hazards)
    sums = "sums of matrix products: exact, as the matrix engine sums (slow), or default"
    add("--golden-sums", metavar="SUMS", help=sums)
    pages = "compare each device operation with float32, and write a page and a JSON file for each test"
    add("--golden-report", metavar="DIR", help=pages)
    late = "with --golden: queues, chips and transfers run as late as a program allows, and a race is an error"
    add("--adversarial", type=int, metavar="SEED", help=late)
    skips = "pass although tests were skipped and no test opened a device"
    add("--golden-allow-skips", action="store_true", help=skips)


def pytest_load_initial_conftests(early_config):
    """Activate the golden mesh before any conftest imports ttnn."""
    options = early_config.known_args_namespace
    if options.golden is None:
        return
    import golden_mesh

    try:
        given = {"hazards": options.golden_hazards, "sums": options.golden_sums, "adversarial": options.adversarial}
        given = {name: value for name, value in given.items() if value is not None}
        golden_mesh.activate(_system(options.golden), **given)
    except golden_mesh.GoldenMeshError as error:
        raise pytest.UsageError(f"--golden: {error}") from error


def _system(name: str) -> str:
    from golden_mesh.start.systems import named

    if name == "auto" and "MESH_DEVICE" not in os.environ:
        raise pytest.UsageError("--golden auto: MESH_DEVICE is not set: name a system")
    return named(os.environ["MESH_DEVICE"] if name == "auto" else name)


def pytest_configure(config):
    if config.getoption("--golden") is not None:
        config.pluginmanager.register(_Run(config), "golden_mesh_run")
    if config.getoption("--golden-report") is not None:
        if config.getoption("--golden") is None:
            raise pytest.UsageError("--golden-report compares operations of a golden mesh: give --golden SYSTEM, too")
        config.pluginmanager.register(_Reports(config), "golden_mesh_reports")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """Drop the tests and fixtures, with the ttnn objects that are parameters and defaults of theirs.

    Modules that pytest loaded refer to them, and Python clears such modules after ttnn, which then prints a list of
    leaked objects.
    """
    names = "session", "funcmanage", "terminalreporter"
    session, fixtures, reporter = (config.pluginmanager.get_plugin(name) for name in names)
    if "ttnn" not in sys.modules or fixtures is None or reporter is None:
        return
    session.items.clear()
    vars(fixtures).clear()
    reporter.stats.clear()


class _Reports:
    """Compares each test's operations with float32 (golden-mesh compare)."""

    def __init__(self, config):
        from golden_mesh.compare.comparison import comparing

        self.directory = Path(config.getoption("--golden-report"))
        self.directory.mkdir(parents=True, exist_ok=True)
        self.of_fixtures = 0  # number of the reference's values
        self.run = contextlib.ExitStack()
        self.comparison = self.run.enter_context(comparing())

    def _file(self, item, kind: str) -> Path:
        return self.directory / (re.sub(r"[^\w.-]+", "_", item.nodeid) + f".{kind}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        self.comparison.begin()
        result = yield
        del self.comparison.reference.values[self.of_fixtures :]
        return result

    def pytest_runtest_call(self, item):
        self.of_fixtures = len(self.comparison.reference.values)  # these stay for later tests

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        from golden_mesh.compare import report as compare_report

        report = yield
        if call.when == "call" and self.comparison.rows:
            page = self._file(item, "html")
            compare_report.write_json(self.comparison, self._file(item, "json"))
            compare_report.write_html(self.comparison, page, item.nodeid)
            if report.failed:
                text = compare_report.text(self.comparison, compare_report.BELOW, shown=5)
                report.sections.append(("golden-mesh compare", f"{text}\nreport: {page}"))
        return report

    def pytest_unconfigure(self):
        self.run.close()


class _Run:
    """One run on the golden mesh: its header, whether it opened a device, and its end."""

    def __init__(self, config):
        self.config = config
        self.opened = False  # on a worker of pytest-xdist, too
        self.failed = False

    def pytest_report_header(self):
        return f"golden mesh: {_system(self.config.getoption('--golden'))}, values computed by torch"

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        """A worker of pytest-xdist is done."""
        self.opened |= getattr(node, "workeroutput", {}).get("golden_mesh_opened", False)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session, exitstatus):
        """Fail a run in which tests were skipped and no test opened a device."""
        from golden_mesh.mesh import meshes

        self.opened |= meshes.any_opened()
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["golden_mesh_opened"] = self.opened
            return
        reporter = self.config.pluginmanager.get_plugin("terminalreporter")
        skipped = reporter is not None and reporter.stats.get("skipped")
        allowed = self.config.getoption("--golden-allow-skips")
        if skipped and not self.opened and not allowed and exitstatus == pytest.ExitCode.OK:
            self.failed = True
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        if self.failed:
            count = len(terminalreporter.stats["skipped"])
            terminalreporter.section("golden mesh", red=True)
            terminalreporter.line(
                f"failed: {count} skipped, and no test opened a device. See why with -rs; "
                "--golden-allow-skips lets such a run pass."
            )
