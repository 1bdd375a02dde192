"""Results of passing tests are printed at the end of a run."""

import pytest

RESULTS = pytest.StashKey[list]()


@pytest.fixture
def publish(pytestconfig):
    """publish(line): print the line at the end of the run."""
    return pytestconfig.stash.setdefault(RESULTS, []).append


def pytest_terminal_summary(terminalreporter, config):
    for line in config.stash.get(RESULTS, []):
        terminalreporter.write_line(line)
