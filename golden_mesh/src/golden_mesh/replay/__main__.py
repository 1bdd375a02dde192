"""python -m golden_mesh.replay, as golden-mesh replay runs it."""

import json
import sys
from contextlib import ExitStack

from golden_mesh.errors import GoldenMeshError
from golden_mesh.outputs import write_whole
from golden_mesh.replay import ERROR, GAIN, HEADER, differs, line, load, opened, replay
from golden_mesh.start.options import parse


def main() -> int:
    rows = []
    with ExitStack() as stack:
        args = parse(["replay", *sys.argv[1:]])
        try:
            kept = load(args.file)
            device = stack.enter_context(opened(kept))
        except ValueError as error:
            raise GoldenMeshError(f"{error}") from error
        print(HEADER)
        for row in replay(device, kept, args.calls, lambda text: text.startswith("running") or print(text, flush=True)):
            rows.append(row)
            if args.json:
                write_whole(args.json, lambda part: part.write_text("".join(f"{json.dumps(each)}\n" for each in rows)))
    other = [row for row in rows if differs(row)]
    print(f"{len(other)} of {len(rows)} operations differ by more than {ERROR} (gain {GAIN})" + ":" * bool(other))
    worst = lambda row: (bool(row["failed"]), row.get("not_finite", 0), row["error"] or 0)
    for row in sorted(other, key=worst, reverse=True):
        print(line(row), f"    {row['call']}", sep="\n")
    return int(any(row["failed"] for row in rows))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GoldenMeshError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
