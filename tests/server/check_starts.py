"""Start servers that must refuse their options, and one of another revision: .venv-vllm/bin/python
tests/server/check_starts.py [--only WORDS].

Each is scripts/serve.py with real vLLM and the plugin. Prints a table: exit status, seconds, the line that names the
option. The last server has the weights of --revision, which differ from the main branch's; its answer must be theirs by
Hugging Face. Its tokenizer and generation config have a token that the weights have no row for: no request that comes
upon it may end the engine. With faults the exit status is 1.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
SMALL = ROOT / "models/demos/qwen25_7b/reference/small"
PATIENCE = 900  # seconds for a start; a golden mesh is slow
PORT = 18477
PROMPT = list(range(40, 60))
ROWS = 1056  # of the small checkpoint's embedding
COMMITS = {"main": "a" * 40, "v1": "b" * 40}
LLAMA3 = "--enable-auto-tool-choice --tool-call-parser llama3_json"  # the small checkpoint has no <|python_tag|>
# options, what the log must say, exit status: 2 before vLLM starts, 1 after
REFUSED = (
    ("--block-size 16", "--block-size must be 32, 64 or 128 tokens, got 16", 2),
    ("--max-num-seqs 256", "--max-num-seqs must be an integer, 1 to 32; got 256", 2),
    (LLAMA3, "--tool-call-parser llama3_json: .*<|python_tag|>", 2),
    ("--max-model-len 99999", "max_model_len", 1),
    ("--quantization fp8", "--quantization fp8: leave it out and choose a recipe", 1),
    ("--dtype float16", "--dtype float16: leave it out and choose a recipe", 1),
    ("--kv-cache-dtype fp8", "--kv-cache-dtype fp8: leave it out and choose a recipe", 1),
    ("--num-gpu-blocks-override 9", "holds 512 tokens, fewer than one sequence of --max-model-len 2048", 1),
    ("--worker-cls auto", "start with --worker-cls qwen25_7b_worker.MeshWorker", 1),
    ('--additional-config {"tt":{"optimizations":"fast"}}', "fast", 1),
    ("--enable-lora", "LoRA is not supported", 1),
    ("--tensor-parallel-size 2", "does not support distributed execution", 1),
)


def start(model: str, options: list[str], log: Path) -> subprocess.Popen:
    arguments = [sys.executable, f"{ROOT}/scripts/serve.py", model, "--port", f"{PORT}", *options]
    return subprocess.Popen(arguments, cwd=ROOT, stdout=log.open("w"), stderr=subprocess.STDOUT)


def wait(server: subprocess.Popen, log: Path) -> str:
    """Return the log once the server is up or has ended; one that is up is then stopped."""
    end = time.monotonic() + PATIENCE
    while server.poll() is None and "startup complete" not in log.read_text() and time.monotonic() < end:
        time.sleep(0.5)
    return log.read_text()


def stop(server: subprocess.Popen) -> int:
    if server.poll() is None:
        server.send_signal(signal.SIGTERM)
    return server.wait()


def refused(options: str, words: str, status: int, log: Path) -> tuple[bool, str]:
    began = time.monotonic()
    server = start(f"{SMALL}", options.split(), log)
    text = wait(server, log)
    loaded = "Warm-up" in text
    seconds, got = time.monotonic() - began, stop(server)
    parts = words.split(".*")
    lines = [line for line in text.splitlines() if all(part in line for part in parts)]
    right = bool(lines) and got == status and not loaded
    return right, f"| {options} | {got} | {seconds:.0f} s | {lines[-1].strip()[:160] if lines else text[-300:]} |"


def two_revisions(home: Path) -> None:
    """A hub's cache with the small checkpoint twice. v1 has the opposite logits, and a token beyond the vocabulary."""
    import safetensors.torch

    folder = home / "hub/models--org--small"
    for name, commit in COMMITS.items():
        shutil.copytree(SMALL, folder / "snapshots" / commit)
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / name).write_text(commit)
    file = folder / "snapshots" / COMMITS["v1"] / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    tensors["model.norm.weight"] = -tensors["model.norm.weight"]
    safetensors.torch.save_file(tensors, file, {"format": "pt"})
    rules = json.loads((file.parent / "tokenizer.json").read_text())
    last = rules["added_tokens"][-1]
    rules["added_tokens"] += [last | {"id": i, "content": f"<|{i}|>"} for i in range(last["id"] + 1, ROWS + 1)]
    (file.parent / "tokenizer.json").write_text(json.dumps(rules))
    ends = {"eos_token_id": [1023, 1021, ROWS]}
    (file.parent / "generation_config.json").write_text(json.dumps(ends))


def greedy(home: Path, revision: str) -> list[int]:
    """Hugging Face's next 8 tokens after PROMPT."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(home / "hub/models--org--small/snapshots" / COMMITS[revision])
    ids = model.generate(torch.tensor([PROMPT]), max_new_tokens=8, do_sample=False, repetition_penalty=1.0)
    return ids[0, len(PROMPT) :].tolist()


def revision(log: Path) -> tuple[bool, str]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        two_revisions(home)
        os.environ |= {"HF_HOME": folder, "HF_HUB_OFFLINE": "1"}
        expected = {name: greedy(home, name) for name in COMMITS}
        server = start("org/small", ["--revision", "v1"], log)
        try:
            text = wait(server, log)
            body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
            url = f"http://127.0.0.1:{PORT}/v1/completions"
            answer = httpx.post(url, json=body | {"model": "small"}, timeout=PATIENCE).json()
            ids = answer["choices"][0]["token_ids"]
            others = {"prompt": f"a <|{ROWS}|>"}, {"allowed_token_ids": [ROWS]}, {"min_tokens": 8}
            statuses = [httpx.post(url, json=body | other, timeout=PATIENCE).status_code for other in others]
        except (httpx.HTTPError, KeyError) as fault:
            return False, f"| --revision v1 | | | {type(fault).__name__}: {text[-300:]} |"
        finally:
            stop(server)
    right = ids[: len(expected["v1"])] == expected["v1"] != expected["main"] and statuses == [400, 400, 200]
    return right, f"| --revision v1 | 0 | | {ids}, {statuses} by the server; {json.dumps(expected)} by Hugging Face |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="WORDS", help="only starts with these words")
    only, faults = parser.parse_args().only, 0
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        checks = {
            options: (lambda o=options, w=words, s=status: refused(o, w, s, log)) for options, words, status in REFUSED
        }
        checks["--revision v1"] = lambda: revision(log)
        for name, check in checks.items():
            if only in name:
                right, line = check()
                faults += not right
                print("" if right else "FAULT: ", line, sep="", flush=True)
    print(f"{faults} faults")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
