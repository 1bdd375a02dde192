"""Text from Qwen2.5 on an N150, N300 or T3K.

    python models/demos/qwen25_7b/demo/demo.py --mesh N300 --model Qwen/Qwen2.5-7B-Instruct --prompt "Hello"

Without --model the small checkpoint of this repository answers, so nothing is downloaded.
"""

import os
import sys

sys.path.insert(0, os.path.realpath(f"{__file__}/../../../../.."))  # so that the file runs from a plain checkout

from models.common.command import run, status_of  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _answer(argv))


def _answer(argv: list[str] | None) -> None:
    from models.demos.qwen25_7b.demo.options import parse
    from models.demos.qwen25_7b.demo.run import answer

    answer(parse(argv, __doc__.splitlines()[0]))


if __name__ == "__main__":
    run(main)
