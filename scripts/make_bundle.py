"""Write a bundle that `tt-model serve` runs: the model's code, and scripts that install and start vLLM. Needs no card.

The layout is a thin package of tt-model-manager (docs/thin_packages.md there, schema 6). install.sh and run.sh also
work without tt-model-manager. Weights are not in it: the server loads them from the hub.
"""

import json
import os
import re
import shlex
import shutil
import time
from pathlib import Path

from models.demos.qwen25_7b.cli.command import run
from models.demos.qwen25_7b.cli.options import Parser, path
from models.demos.qwen25_7b.config import QWEN25_7B, DecoderConfig
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.plans.machines import MACHINES, MachineKind
from models.demos.qwen25_7b.weights.checkpoint import SMALL_FILES, local_directory

HERE = Path(__file__).resolve().parents[1]
PACKAGE = Path("models/demos/qwen25_7b")
EXTRA = PACKAGE / "vllm/extra_models/qwen25_7b"
DEFAULT = "Qwen/Qwen2.5-7B-Instruct"
SCRIPTS = "serve.py", "vllm_venv.sh", "vllm_lock.txt", "find_python.sh", "remove_venv.sh"
RESOURCES = {"max_model_len": 2048, "max_num_seqs": 32, "block_size": 64}  # of manifest and run.sh
PORT = 20000  # tt-model's
OVERRIDES = "opencv-python-headless==4.11.0.86\nnumpy>=1.24.4,<2\n"  # as in scripts/vllm_venv.sh


def architecture(model: str) -> str:
    """Return the architecture of a hub id, by its config.json. UserError: a directory, out of reach, or not served."""
    if os.path.isdir(model):
        raise UserError(f"--model {model}: a directory; a bundle has no weights, so it names a hub id")
    if model == DEFAULT:  # needs no network
        return QWEN25_7B.architecture
    return DecoderConfig.from_json(local_directory(model, SMALL_FILES) / "config.json").architecture


def manifest(kind: MachineKind, model: str, arch: str, ttnn: str) -> dict:
    return {
        "schema_version": "6",
        "name": f"{model.rpartition('/')[2]}-{kind.name}",
        "tt_metal_version": ttnn,
        "arch": kind.chip.architecture.lower(),  # as tt-metal's ARCH_NAME
        "device_count": kind.chips,
        "producer": {
            "tt_kernel_version": "none: scripts/make_bundle.py",
            "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        },
        "weights": {"repo": model},
        "mesh": {"devices": kind.chips, "topology": "x".join(map(str, kind.shape))},
        "entrypoint": {"class": "model:QwenForCausalLM", "arch_name": arch},
        "resources": RESOURCES,
        "deps": {
            "python": "3.12",
            "requirements": "requirements.txt",
            "vllm": {"version": "0.25.1", "overrides": "vllm-overrides.txt"},
        },
    }


def write_bundle(kind: MachineKind, model: str, out: Path) -> None:
    """model: a hub id. out: a folder that does not exist. FileExistsError if it does."""
    arch = architecture(model)
    shutil.copytree(HERE / PACKAGE, out / PACKAGE, ignore=shutil.ignore_patterns("__pycache__", "small"))
    (out / "scripts").mkdir()
    for name in SCRIPTS:
        shutil.copy(HERE / "scripts" / name, out / "scripts")
    shutil.copy(HERE / "LICENSE", out)
    shutil.copy(HERE / EXTRA / "qwen25_7b_for_vllm.py", out / "model.py")
    # As scripts/vllm_venv.sh installs them: vLLM asks for another torch than this repository.
    torch = re.search(r"^torch=(.*)$", (HERE / "scripts/vllm_venv.sh").read_text(), re.M)[1]
    pins = re.findall(r"^ttnn==.*$", (HERE / "requirements.txt").read_text(), re.M)
    pins.append(f"torch=={torch}")
    metadata = {"arch": arch, "main_class": "model:QwenForCausalLM"}
    ttnn = pins[0].partition("==")[2]
    lengths = " ".join(f"--{key.replace('_', '-')} {value}" for key, value in RESOURCES.items())
    values = {
        "MESH": kind.name,
        "MODEL": shlex.quote(model),
        "NAME": shlex.quote(model.rpartition("/")[2]),
        "PORT": f"{PORT}",
        "LENGTHS": lengths,
    }
    for name, text in {
        "tt_kernel_manifest.json": json.dumps(manifest(kind, model, arch, ttnn), indent=2),
        "vllm_models/qwen25_7b/vllm_metadata.json": json.dumps(metadata, indent=2),
        "requirements.txt": "\n".join(pins) + "\n",
        "vllm-overrides.txt": OVERRIDES,
        **{file.name: file.read_text() for file in (HERE / "scripts/bundle").iterdir()},
    }.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        for key, value in values.items():
            text = text.replace(f"@{key}@", value)
        (out / name).write_text(text)


def main() -> None:
    parser = Parser(description=__doc__)
    option = parser.add_argument
    option("--mesh", choices=list(MACHINES), default="N300")
    option("--model", default=DEFAULT, help="hub id (default: %(default)s)")
    option("--out", type=path, help="folder to write (default: generated/bundle-MESH)")
    args = parser.parse_args()
    out = args.out or HERE / "generated" / f"bundle-{args.mesh}"
    if out.exists():
        parser.error(f"{out} exists: remove it, or name another folder with --out")
    write_bundle(MACHINES[args.mesh], args.model, out)
    print(f"{out}: sh install.sh, then sh run.sh")


if __name__ == "__main__":
    run(main)
