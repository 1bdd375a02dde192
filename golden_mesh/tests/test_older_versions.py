"""The table of tests that fail with an older ttnn names tests that exist (or the beginnings of their names)."""

from pathlib import Path

from older_versions import FAILS, OF_THE_NEWEST

HERE = Path(__file__).resolve().parent


def test_every_entry_names_a_test():
    assert all((HERE / file).exists() for file in OF_THE_NEWEST)
    for table in FAILS.values():
        for entry in table:
            file, _, test = entry.partition("::")
            name, text = test.partition("[")[0], (HERE / file).read_text()
            assert f"def {name}" in text or f"{name} = examples(" in text, entry
