"""Start an OpenAI-compatible server: .venv-vllm/bin/python scripts/serve.py MODEL [options of vllm serve].

MODEL is a directory or a hub id. A hub id is resolved to one commit, of --revision or of its main branch; config,
tokenizer and weights are of that commit.
MESH_DEVICE: N150, N300 (the default), N150x4, T3K, P100, P150, P300, P150x4, P150x8, or TG, a Galaxy with a replica on
each of four rows. Without a Tenstorrent device the server runs on the golden mesh.
Exit status: 0 after SIGINT, SIGTERM or SIGHUP; 2 for a model or option that is refused here; otherwise not 0.
"""

import json
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from ctypes import CDLL
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
from models.demos.qwen25_7b.cli.terminal import complain  # noqa: E402
from models.demos.qwen25_7b.errors import UserError  # noqa: E402
from models.demos.qwen25_7b.plans.machines import BY_NAME  # noqa: E402
from models.demos.qwen25_7b.tt.mesh import TRACE_REGION_BYTES  # noqa: E402
from models.demos.qwen25_7b.vllm.options import REPLICAS_OPTIONS, checked_options, option_value  # noqa: E402
from models.demos.qwen25_7b.vllm.process import run  # noqa: E402

DEFAULTS = ["--block-size", "64", "--max-num-seqs", "32", "--max-model-len", "2048"]
# Where a repository also holds Mistral's own files, vLLM would read those. Its guidance has no SentencePiece of theirs.
DEFAULTS += ["--config-format", "hf", "--tokenizer-mode", "hf"]
# Refuses what would end the engine, and what vLLM ignores. EXTRA_MODELS_DIR makes the module importable.
DEFAULTS += ["--middleware", "qwen25_7b_requests.RequestCheck"]
# llguidance keeps a constraint or refuses it. With "auto", vLLM checks a request by one backend and compiles it by the
# first that was used (vLLM issue 43920). A failed compilation ends the engine.
STRUCTURED = "--structured-outputs-config"
# An object has the properties that its schema names, unless it says otherwise, as OpenAI and xgrammar have it.
BACKEND = [f"{STRUCTURED}.backend", "guidance", f"{STRUCTURED}.disable_additional_properties", "true"]
DEFAULTS += ["--worker-cls", "qwen25_7b_worker.MeshWorker"]  # closes the mesh at the end
DEFAULTS += BACKEND
# l1_small_size: where collectives keep semaphores, which otherwise split the L1 that the matmuls need.
# trace_region_size: the plugin's default of 50 MB holds the traces of a few sizes of prompts only.
TT_CONFIG = {"sample_on_device_mode": "all", "l1_small_size": 16384, "trace_region_size": TRACE_REGION_BYTES}
# The plugin opens every fabric as a line unless it is told otherwise.
RING = {"fabric_config": "FABRIC_1D_RING"}
CONFIG_OPTION = "--additional-config"
ASKING = {"-h", "--help", "--version", "-v"}  # vLLM answers these and ends
REFUSED, INTERRUPTED = 2, 130  # exit statuses
PR_SET_PDEATHSIG = 1  # of prctl(2)


def merged_options(options: list[str], mesh: str) -> list[str]:
    """vLLM's options: the defaults, the user's, then an --additional-config of both. mesh: as in MESH_DEVICE."""
    kind = BY_NAME.get(mesh.upper())
    replicas = option_value(options, *REPLICAS_OPTIONS)
    config = {"tt": dict(TT_CONFIG)}
    added = []
    if kind is not None and replicas is None:
        rows = kind.shape[0]
        if rows > 1:
            added = ["--data-parallel-size", f"{rows}", "--api-server-count", "1"]
        if kind.is_ring(kind.chips):
            config["tt"] |= RING
    kept = []
    given = iter(options)
    for option in given:
        name, equals, value = option.partition("=")
        name = name.replace("_", "-")
        if name == CONFIG_OPTION:
            users = read_config(value if equals else next(given, ""))
            config |= users | {"tt": config["tt"] | users.get("tt", {})}
        elif name.startswith(f"{CONFIG_OPTION}."):
            raise UserError(f"{option}: give one JSON object, {CONFIG_OPTION} '{{\"tt\": {{...}}}}'")
        else:
            kept.append(option)
    # Beside a JSON object vLLM would take the dotted option alone.
    is_given = option_value(options, STRUCTURED) is not None
    defaults = DEFAULTS[: -len(BACKEND)] if is_given else DEFAULTS
    return [*defaults, *added, *kept, CONFIG_OPTION, json.dumps(config)]


def expanded_options(options: list[str]) -> list[str]:
    """Return the options with those of --config FILE.yaml, vLLM's, in front: the command line wins, then the file."""
    kept, of_file = [], []
    given = iter(options)
    for option in given:
        name, equals, value = option.partition("=")
        if name != "--config":
            kept.append(option)
            continue
        file = value if equals else next(given, "")
        for key, value in read_yaml(file).items():
            if key == "model" or value is False:  # MODEL is given; vLLM leaves out what is false
                continue
            values = value if isinstance(value, list) else [value]
            words = [json.dumps(v) if isinstance(v, dict) else f"{v}" for v in values]
            of_file += [f"--{key}", *(() if value is True else words)]
    return of_file + kept


def read_yaml(file: str) -> dict:
    import yaml  # vLLM has it

    try:
        content = yaml.safe_load(Path(file).read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"--config {file}: not a readable YAML file: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"--config {file}: must hold options of vllm serve, such as port: 8001")
    return content


def read_config(text: str) -> dict:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict) or not isinstance(config.get("tt", {}), dict):
        raise UserError(f"{CONFIG_OPTION} must be a JSON object such as '{{\"tt\": {{...}}}}', got {text!r}")
    return config


def command(model: str, options: list[str], mesh: str) -> list[str]:
    vllm = [str(Path(sys.executable).parent / "vllm"), "serve", model, *merged_options(options, mesh)]
    golden_mesh = HERE / "golden_mesh/src/golden_mesh"  # a bundle has none
    device = os.environ.get("TT_METAL_SIMULATOR") or glob("/dev/tenstorrent/*")
    if device or not golden_mesh.exists():
        return vllm
    complain("no Tenstorrent device: on the golden mesh, whose times say nothing about hardware")
    return [sys.executable, str(golden_mesh), "--system", mesh, *vllm]


def serve(model: str, options: list[str]) -> int:
    """Run a server; return the exit status."""
    mesh = os.environ.get("MESH_DEVICE") or "N300"
    kind = BY_NAME.get(mesh.upper())  # None for the plugin's other names, such as (1, 2)
    environment = os.environ | {
        "LLGUIDANCE_LOG_LEVEL": "0",  # the answer to a request says what its grammar lacks
        "MESH_DEVICE": kind.mesh_device if kind else mesh,
        # A required tool call is a JSON schema then. Otherwise it is a structural tag of xgrammar's form.
        "VLLM_ENFORCE_STRICT_TOOL_CALLING": "0",
        "EXTRA_MODELS_DIR": str(HERE / "models/demos/qwen25_7b/vllm/extra_models"),
    }
    if any(option.partition("=")[0] in ASKING for option in options):
        arguments = command(model, options, mesh)
        os.execvpe(arguments[0], arguments, environment)
    options = expanded_options(options)
    drain = option_value(options, "--shutdown-timeout") or ""
    drain_seconds = int(drain) if drain.isdecimal() else 0  # vLLM refuses what is no number
    with TemporaryDirectory() as folder:
        # In another process: the supervisor is small and ends quickly without torch.
        with ProcessPoolExecutor(1, initializer=end_with_parent) as pool:
            options = pool.submit(checked_options, model, options, mesh, folder).result()
        return run(command(model, options, mesh), environment, drain_seconds)


def end_with_parent() -> None:
    """Let the kernel end this process once its parent has ended, which SIGTERM does without a word."""
    CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    try:
        return serve(sys.argv[1], sys.argv[2:])
    except UserError as error:
        complain(f"error: {error}")
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
