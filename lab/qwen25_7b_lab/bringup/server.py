"""vLLM's own benchmark against `make serve`, at tt-inference-server's sizes: writes OUT/server-*.json.

Both are programs of .venv-vllm, which has vLLM and Tenstorrent's plugin.
"""

import argparse
import os
import subprocess
import time
import urllib.request

from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.files import read_json
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

from .stages import REPOSITORY, run_program

BIN = REPOSITORY / ".venv-vllm/bin"
PORT = "8317"
SIZES = ((128, 128), (128, 1024), (1024, 128), (2048, 128), (8192, 128))  # tokens in, tokens out
SMALL_CONTEXT = 4096  # tokens of the small checkpoint


def wait(server: subprocess.Popen) -> None:
    """Until the server answers. A first start compiles; the stage has a time limit."""
    while server.poll() is None:
        try:
            urllib.request.urlopen(f"http://localhost:{PORT}/health", timeout=5)
            return
        except OSError:
            time.sleep(1)
    raise UserError("the server ended before it answered")


def benchmark(args: argparse.Namespace) -> None:
    longest = SMALL_CONTEXT if args.model == f"{SMALL_CHECKPOINT}" else max(map(sum, SIZES))
    sizes = [size for size in SIZES if sum(size) <= longest]
    requests = 4  # a user's
    if args.size == "tiny":
        sizes, longest, requests = [(128, 16)], 256, 1
    serve = [f"{BIN}/python", "scripts/serve.py", args.model, "--port", PORT, "--max-model-len", f"{longest}"]
    server = subprocess.Popen(serve, cwd=REPOSITORY, env=os.environ | {"MESH_DEVICE": args.mesh})
    try:
        wait(server)
        for users in (1, 32):
            for given, made in sizes:
                bench = [
                    f"{BIN}/vllm", "bench", "serve", "--model", args.model, "--port", PORT,
                    "--dataset-name", "random", "--ignore-eos",
                    "--random-input-len", f"{given}", "--random-output-len", f"{made}",
                    "--max-concurrency", f"{users}", "--num-prompts", f"{requests * users}",
                    "--save-result", "--result-dir", f"{args.out}",
                    "--result-filename", f"server-{given}-{made}-{users}.json",
                ]  # fmt: skip
                subprocess.run(bench, cwd=REPOSITORY, check=True)
                done = read_json(args.out / bench[-1])["completed"]
                if done != requests * users:
                    raise UserError(f"{done} of {requests * users} requests were answered")
    finally:
        server.terminate()
        server.wait(120)


if __name__ == "__main__":
    run_program(__doc__, benchmark)
