"""Writes the figures of HAZARDS.md's last section, "Not like a chip here", from the records in tests/vectors.

    golden-mesh --system N150 golden_mesh/scripts/hazards_table.py

A row keeps its pattern and its reason. A row whose cases are all like a chip goes; a case that differs and has no row
gets one.
"""

import re
import sys
from pathlib import Path

import ttnn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from test_families import CASES, ERROR, GAIN, TESTS, difference, matches, named  # noqa: E402

PAGE = TESTS.parent / "HAZARDS.md"
HEAD = "| case | error | gain | why |\n|---|---|---|---|\n"


def row(pattern: str, found: list[tuple[float, float]], why: str) -> str:
    """The largest error of a pattern's cases, and the gain that is furthest from 1."""
    error = max(each for each, _ in found)
    gain = max((each for _, each in found), key=lambda each: abs(each - 1))
    mantissa, exponent = f"{error:.1e}".split("e")
    return f"| `{pattern}` | {mantissa}e{int(exponent)} | {gain:.4f} | {why} |\n"


def differs(found: tuple[float, float]) -> bool:
    return found[0] > ERROR or abs(found[1] - 1) >= GAIN


def main() -> None:
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 1), l1_small_size=16 << 10)
    before, rest = PAGE.read_text().split(HEAD)
    table, _, after = rest.partition("\n\n")
    rows = [line.strip("| ").split(" | ", 3) for line in table.splitlines()]
    kept = [(pattern.strip("`"), why.removesuffix(" |")) for pattern, _, _, why in rows]
    lines = []
    for pattern, why in kept:
        found = [difference(device, name) for name in named(pattern)]
        if any(map(differs, found)):
            lines.append(row(pattern, found, why))
    for name in CASES:
        if not matches(name, [pattern for pattern, _ in kept]) and differs(found := difference(device, name)):
            lines.append(row(name, [found], "not looked into"))
    equal = sum(difference(device, name, exact=True) == (0, 1) for name in CASES)
    before = re.sub(r"\d+ small cases", f"{len(CASES)} small cases", before)
    before = re.sub(r"exact sums\n?\s?\d+ cases", f"exact sums\n{equal} cases", before)
    PAGE.write_text(before + HEAD + "".join(lines) + "\n" + after)
    ttnn.close_mesh_device(device)
    print(f"{len(lines)} rows of {len(CASES)} cases")


if __name__ == "__main__":
    main()
