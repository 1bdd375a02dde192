"""The stages of `make bringup`: what each runs, how long it may take, and how the folder's own programs start."""

import argparse
import sys
from dataclasses import replace
from typing import Callable

from models.demos.qwen25_7b.cli.command import quiet_libraries, run
from models.demos.qwen25_7b.cli.options import Parser, add_machine, path
from models.demos.qwen25_7b.plans.machines import machine
from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT

from .runner import REPOSITORY, Stage

OURS = __package__.rpartition(".")[0]
SIZES = ("tiny", "7b")


def run_program(doc: str, *programs: Callable[[argparse.Namespace], None]) -> None:
    """Run a stage's program with the options of all of them. Of several programs the first argument names one."""

    def main() -> None:
        quiet_libraries()
        parser = Parser(description=doc)
        if len(programs) > 1:
            parser.add_argument("program", choices=[program.__name__ for program in programs])
        add_machine(parser)
        parser.add_argument("--size", choices=SIZES, default="7b", help="dims")
        parser.add_argument("--out", type=path, metavar="DIR", help="folder of the report")
        parser.add_argument("--model", help="directory or hub id, for the server")
        args = parser.parse_args()
        name = getattr(args, "program", programs[0].__name__)
        next(program for program in programs if program.__name__ == name)(args)

    run(main)


def stages(r: argparse.Namespace) -> tuple[Stage, ...]:
    """r: mesh, backend, size, out, slower, on; model, reference and questions, or None."""
    python, here = (sys.executable, "-m"), ("--mesh", r.mesh, "--backend", r.backend)
    ours = lambda name: (*python, f"{OURS}.bringup.{name}")
    pytest = (*python, *"pytest -v -p no:cacheprovider -o addopts=".split(), *here)
    record = (*python, "golden_mesh", "record", "--system", r.mesh, "--to", f"{r.out}/ops.pt", "-m")
    out, model = ("--out", f"{r.out}"), ("--model", f"{r.model or SMALL_CHECKPOINT}")
    sized = ("--size", r.size, *out)
    text = ["tests/splits/test_replicas.py", "tests/perf/test_traced_steps.py"]
    tiny = ()
    if r.size == "tiny":  # smaller machines have the other splits
        tiny = ("--size", "tiny", "--tp", f"{machine(r.mesh).row}", "-m", "not seven_b")
    else:
        text += ["tests/accuracy", "tests/splits", "tests/engine/test_tokens.py"]
    evaluate = lambda command: (*python, f"{OURS}.evaluation", command, *here, *model, *out)
    answers = [(*evaluate("eval"), "--recipes", "bfp8,performance")]
    if r.reference:
        judge = ("tests/accuracy/test_teacher_forcing.py", "--reference", r.reference)
        answers = [(*pytest, *model, *judge)]
    if r.questions:
        splits = "8,4,2,1" if r.mesh == "T3K" else f"{machine(r.mesh).row}"
        answers.append((*evaluate("tasks"), "--questions", r.questions, "--tp", splits))
    venv = REPOSITORY / ".venv-vllm/bin/python"
    with_model = r.on | dict(model=r.model, reference=r.reference, questions=r.questions)
    every = (
        Stage("machine", ((*ours("machine"), *here, *sized),), 5, results=("machine.json",)),
        Stage("ops", (
            (*record, f"{OURS}.bringup.ops", "record", *here, *sized),
            (*ours("ops"), "replay", *here, *sized),
        ), 20, results=("ops.json",)),
        Stage("modules", ((*pytest, *tiny, "tests/pcc"),), 20),
        Stage("text", ((*pytest, *tiny, "--queues", "2", *text),), 20),
        Stage("memory", ((*pytest, *tiny, "tests/splits/test_fits.py"),), 20),
        Stage("speed", ((*ours("speed"), *here, *sized),), 20, results=("speed.json",)),
        Stage(
            "answers", tuple(answers), 60, skip="" if r.model else "needs MODEL, a checkpoint with real weights",
            on=with_model, results=("*-decode.json", "*-tasks.json"),
        ),
        Stage(
            "server", ((*ours("server"), *here, *sized, *model),), 60,
            skip="" if venv.exists() else "needs .venv-vllm: make serve once",
            on=r.on | dict(model=r.model), results=("server-*.json",),
        ),
    )  # fmt: skip
    return tuple(replace(each, minutes=r.slower * each.minutes, on=each.on or r.on) for each in every)
