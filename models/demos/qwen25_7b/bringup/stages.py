"""The stages of `make bringup`: what each runs, and how long it may take."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from models.demos.qwen25_7b.bringup.runner import Stage

REPOSITORY = Path(__file__).resolve().parents[4]
OURS = "models.demos.qwen25_7b"


@dataclass(frozen=True)
class Request:
    """What is brought up. model: real weights; None: random ones of the 7B's shapes, and the small checkpoint."""

    mesh: str
    out: Path
    size: str  # tiny or 7b
    backend: str
    model: Optional[str] = None


def stages(request: Request) -> tuple[Stage, ...]:
    r, python = request, (sys.executable, "-m")
    here = ("--mesh", r.mesh, "--backend", r.backend)
    pytest = (*python, "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", *here)
    sized = ("--size", r.size)
    record = (*python, "golden_mesh", "record", "--system", r.mesh, "--to", f"{r.out}/ops.pt")
    whole = r.size == "7b"
    seven_b = () if whole else ("-m", "not seven_b")
    text = ["tests/accuracy/test_small_checkpoint.py", "tests/perf/test_traced_steps.py"]
    text += ["tests/accuracy", "tests/splits", "tests/serving/test_generator.py"] if whole else []
    venv = REPOSITORY / ".venv-vllm/bin/python"
    evaluate = (*python, f"{OURS}.evaluation", "eval", *here, "--model", f"{r.model}")
    serve = (
        *python,
        f"{OURS}.bringup.server",
        "--mesh",
        r.mesh,
        "--out",
        f"{r.out}",
        *(("--model", r.model) if r.model else ()),
    )
    return (
        Stage("machine", ((*python, f"{OURS}.bringup.machine", *here, "--out", f"{r.out}"),), 5),
        Stage(
            "ops",
            (
                (*record, "-m", f"{OURS}.bringup.ops", "record", "--mesh", r.mesh, *sized),
                (*python, f"{OURS}.bringup.ops", "replay", *here, "--out", f"{r.out}", *sized),
            ),
            20,
        ),
        Stage("modules", ((*pytest, *sized, "tests/pcc"),) if not whole else ((*pytest, "tests/pcc"),), 20),
        Stage("text", ((*pytest, *seven_b, "--queues", "2", *text),), 20),
        Stage("memory", ((*pytest, "tests/splits/test_fits.py", *seven_b),), 20),
        Stage("speed", ((*python, f"{OURS}.bringup.speed", *here, "--out", f"{r.out}", *sized),), 20),
        Stage("answers", (evaluate,), 60, skip="" if r.model else "needs MODEL, a checkpoint with real weights"),
        Stage("server", (serve,), 60, skip="" if venv.exists() else "needs .venv-vllm: make serve once"),
    )  # fmt: skip
