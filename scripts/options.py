"""Send every kind of request to a server and check the answers: .venv-vllm/bin/python scripts/options.py [options].

Prints a table: which options of vLLM work, and which are refused, by what and with which words. A wrong answer is a
fault; with faults the exit status is 1. The server is one with tool calls and no other requests:

    make serve ARGS="--enable-auto-tool-choice --tool-call-parser hermes"

Run it where the server was started: the server may name its model by a relative path.
"""

import argparse
import importlib
import sys
import time

from options_client import Client, Fault, Row

TABLES = "sampling", "structured", "tools", "endpoints"


def run(client: Client, rows: list[Row], only: str) -> int:
    """Print a line of the table for each row; return the number of faults."""
    faults = 0
    for option, check in rows:
        if only not in option:
            continue
        try:
            result = check(client)
        except Fault as fault:
            result, faults = f"FAULT: {fault}", faults + 1
        print(f"| {option} | {result} |", flush=True)
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    option = parser.add_argument
    option("--url", default="http://127.0.0.1:8000", help="(default: %(default)s)")
    option("--table", action="append", choices=TABLES, help="(default: all)")
    option("--only", default="", metavar="WORDS", help="only rows that contain these words")
    args = parser.parse_args()
    client, begin, faults = Client(args.url), time.perf_counter(), 0
    for table in args.table or TABLES:
        print(f"\n| {table} | result |\n| --- | --- |")
        faults += run(client, importlib.import_module(f"options_{table}").ROWS, args.only)
    print(f"\n{faults} faults, {time.perf_counter() - begin:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
