"""python -m golden_mesh.replay, as golden-mesh replay runs it."""

import json
import sys
from contextlib import ExitStack

from golden_mesh.errors import GoldenMeshError
from golden_mesh.outputs import write_whole
from golden_mesh.replay import HEADER, load, opened, replay
from golden_mesh.start.options import parse


def main() -> int:
    failed, rows = 0, []
    with ExitStack() as stack:
        args = parse(["replay", *sys.argv[1:]])
        try:
            kept = load(args.file)
            device = stack.enter_context(opened(kept))
        except ValueError as error:
            raise GoldenMeshError(f"{error}") from error
        print(HEADER)
        for row in replay(device, kept, args.calls, lambda text: text.startswith("running") or print(text, flush=True)):
            failed += bool(row["failed"])
            if args.json:
                rows.append(json.dumps(row))
                write_whole(args.json, lambda part: part.write_text("\n".join(rows) + "\n"))
    return min(failed, 1)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except GoldenMeshError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
