"""vLLM's own benchmark against `make serve`, at tt-inference-server's sizes: writes OUT/server-*.json.

Runs in .venv-vllm, which has vLLM and Tenstorrent's plugin.
"""

import argparse
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Iterator

REPOSITORY = Path(__file__).resolve().parents[4]
PORT = 8317
SIZES = ((128, 128), (128, 1024), (1024, 128), (2048, 128), (8192, 128))  # tokens in, tokens out
START = 1800  # seconds until the server answers: a first start compiles


def benchmarks(bin: Path, model: str, out: Path) -> Iterator[list[str]]:
    for users in (1, 32):
        for given, made in SIZES:
            yield [
                f"{bin}/vllm", "bench", "serve", "--model", model, "--port", f"{PORT}", "--dataset-name", "random", "--ignore-eos",
                "--random-input-len", f"{given}", "--random-output-len", f"{made}", "--max-concurrency", f"{users}",
                "--num-prompts", f"{4 * users}", "--save-result", "--result-dir", f"{out}",
                "--result-filename", f"server-{given}-{made}-{users}.json",
            ]  # fmt: skip


def wait(server: subprocess.Popen) -> None:
    deadline = time.monotonic() + START
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(f"http://localhost:{PORT}/health", timeout=5)
            return
        except OSError:
            time.sleep(2)
    sys.exit(f"error: the server did not answer within {START} s, or ended")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mesh", required=True)
    parser.add_argument("--model", default=f"{REPOSITORY}/models/demos/qwen25_7b/reference/small")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    bin = REPOSITORY / ".venv-vllm/bin"
    longest = max(sum(size) for size in SIZES)
    serve = [
        f"{bin}/python",
        "scripts/serve.py",
        args.model,
        "--port",
        f"{PORT}",
        "--max-model-len",
        f"{longest}",
    ]
    server = subprocess.Popen(serve, cwd=REPOSITORY, env=os.environ | {"MESH_DEVICE": args.mesh})
    try:
        wait(server)
        for command in benchmarks(bin, args.model, args.out):
            subprocess.run(command, check=True)
    finally:
        server.terminate()
        server.wait(120)


if __name__ == "__main__":
    main()
