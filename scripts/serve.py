"""Start an OpenAI-compatible server: .venv-vllm/bin/python scripts/serve.py MODEL [options of vllm serve].

serve.py --list prints which checkpoints it takes, and opens nothing. MODEL is a directory or a hub id. A hub id is
resolved to one commit, of --revision or of its main branch; config, tokenizer and weights are of that commit.
MESH_DEVICE: N150, N300 (the default), T3K or TG, a Galaxy with a replica on each of four rows. Without a Tenstorrent
device the server runs on the golden mesh.
Exit status: 0 after SIGINT, SIGTERM or SIGHUP; 2 for a model or option that is refused here; otherwise not 0.
"""

import json
import os
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from glob import glob
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))
from models.common.command import quiet_libraries, status_of  # noqa: E402
from models.common.machines import BY_NAME  # noqa: E402
from models.common.mesh import TRACE_REGION_BYTES  # noqa: E402
from models.common.terminal import say  # noqa: E402
from models.demos.qwen25_7b.serving.vllm_options import (  # noqa: E402
    REPLICAS_OPTIONS,
    checked_options,
    has_option,
    listing,
    option_value,
)
from models.demos.qwen25_7b.serving.vllm_process import run  # noqa: E402

DEFAULTS = ["--block-size", "64", "--max-num-seqs", "32", "--max-model-len", "2048"]
# Refuses requests that would end the engine. EXTRA_MODELS_DIR makes the module importable.
DEFAULTS += ["--middleware", "qwen25_7b_requests.RequestCheck"]
DEFAULTS += ["--worker-cls", "qwen25_7b_worker.MeshWorker"]  # closes the mesh at the end
# l1_small_size: where collectives keep semaphores, which otherwise split the L1 that the matmuls need.
# trace_region_size: the plugin's default of 50 MB holds the traces of a few sizes of prompts only.
TT_CONFIG = {
    "sample_on_device_mode": "all",
    "l1_small_size": 16384,
    "trace_region_size": TRACE_REGION_BYTES,
}
# The plugin opens every fabric as a line unless it is told otherwise.
RING = {"fabric_config": "FABRIC_1D_RING"}
CONFIG_OPTION = "--additional-config"
OPEN_FILES = 1024  # the server holds one for each connection, and 40 of its own
ASKING = {"-h", "--help", "--version", "-v"}  # vLLM answers these and ends


def merged_options(options: list[str], mesh: str) -> list[str]:
    """Return the options with one --additional-config: the defaults with the user's keys over them."""
    config = {"tt": TT_CONFIG | (RING if is_one_ring(options, mesh) else {})}
    kept = replica_options(options, mesh)
    given = iter(options)
    for option in given:
        name, equals, value = option.partition("=")
        if name.replace("_", "-") == CONFIG_OPTION:
            update(config, read_config(value if equals else next(given, "")))
        elif name.replace("_", "-").startswith(f"{CONFIG_OPTION}."):
            value = value if equals else next(given, "")
            keys = name.split(".")[1:]
            update(config, nested(keys, parsed(value)))
        else:
            kept.append(option)
    return [*DEFAULTS, *kept, CONFIG_OPTION, json.dumps(config)]


def is_one_ring(options: list[str], mesh: str) -> bool:
    """Whether the machine's chips are one replica and a ring. mesh: as in MESH_DEVICE."""
    kind = BY_NAME.get(mesh.upper())
    replicas = has_option(options, *REPLICAS_OPTIONS)
    return kind is not None and not replicas and kind.is_ring(kind.chips)


def replica_options(options: list[str], mesh: str) -> list[str]:
    """vLLM's options for a replica on each row of a machine with several, unless the options set the replicas."""
    kind = BY_NAME.get(mesh.upper())
    if kind is None or kind.shape[0] == 1 or has_option(options, *REPLICAS_OPTIONS):
        return []
    return ["--data-parallel-size", f"{kind.shape[0]}", "--api-server-count", "1"]


def read_config(text: str) -> dict:
    try:
        config = json.loads(text)
    except ValueError:
        config = None
    if not isinstance(config, dict) or not isinstance(config.get("tt", {}), dict):
        sys.exit(
            f"{CONFIG_OPTION} must be a JSON object such as '{{\"tt\": {{...}}}}', got {text!r}"
        )
    return config


def parsed(value: str):
    try:
        return json.loads(value)
    except ValueError:
        return value


def nested(keys: list[str], value) -> dict:
    for key in reversed(keys):
        value = {key: value}
    return value


def update(config: dict, changes: dict) -> None:
    """Update config in place; objects inside it are updated too."""
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(config.get(key), dict):
            update(config[key], value)
        else:
            config[key] = value


def command(model: str, options: list[str], mesh: str) -> list[str]:
    program = str(Path(sys.executable).parent / "vllm")
    vllm = [program, "serve", model, *merged_options(options, mesh)]
    if os.environ.get("TT_METAL_SIMULATOR") or glob("/dev/tenstorrent/*"):
        return vllm
    print(
        "no Tenstorrent device: on the golden mesh, whose times say nothing about hardware",
        file=sys.stderr,
    )
    return [sys.executable, str(HERE / "golden_mesh/src/golden_mesh"), "--system", mesh, *vllm]


def allow_open_files() -> None:
    """Raise the limit of open files if it is low."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY or limit >= OPEN_FILES:
        return
    if most != resource.RLIM_INFINITY and most < OPEN_FILES:
        sys.exit(
            f"error: the hard limit of {most} open files is too low, at least {OPEN_FILES} are needed: "
            "raise it (ulimit -Hn, or limits.conf)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, most))


def main() -> int:
    mesh = os.environ.get("MESH_DEVICE") or "N300"
    if sys.argv[1:] == ["--list"]:
        quiet_libraries()
        return status_of(lambda: say(listing(mesh)))
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    allow_open_files()
    model, *options = sys.argv[1:]
    models = HERE / "models/demos/qwen25_7b/serving/extra_models"
    kind = BY_NAME.get(mesh.upper())  # None for the plugin's other names, such as (1, 2)
    plugins_name = kind.mesh_device if kind else mesh
    environment = os.environ | {"MESH_DEVICE": plugins_name, "EXTRA_MODELS_DIR": str(models)}
    if any(option.partition("=")[0] in ASKING for option in options):
        arguments = command(model, options, mesh)
        os.execvpe(arguments[0], arguments, environment)
    checked: list[str] = []

    def check() -> None:
        # In another process: the supervisor is small and ends quickly without torch.
        with ProcessPoolExecutor(1) as pool:
            checked.extend(pool.submit(checked_options, model, options, mesh).result())

    refused = status_of(check)
    if refused:
        return refused
    drain = option_value(checked, "--shutdown-timeout") or ""
    drain_seconds = int(drain) if drain.isdecimal() else 0  # vLLM refuses what is no number
    return run(command(model, checked, mesh), environment, drain_seconds)


if __name__ == "__main__":
    sys.exit(main())
