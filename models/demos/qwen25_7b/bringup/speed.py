"""Seconds of a step and of a first token, by users and prompt: python -m models.demos.qwen25_7b.bringup.speed --mesh N300 --out DIR

Writes OUT/speed.json, a row a case, beside the modeled step. Weights are random, of the 7B's shapes.
"""

import json
import time
from pathlib import Path
from typing import Any, Optional

from models.demos.qwen25_7b.cli.command import quiet_libraries, run, status_of
from models.demos.qwen25_7b.cli.options import Parser, add_machine
from models.demos.qwen25_7b.cli.terminal import say
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.plans.machines import machine
from models.demos.qwen25_7b.tt.mesh import command_queues, host_alone, open_replicas, select_backend

DRAM_BYTES_PER_SECOND = 288e9  # of a chip
WARM = 3
# By size: recipes, users, prompts, steps.
CASES = {
    "7b": (("bfp8", "performance"), (1, 32), (128, 1024, 8192), 100),
    "tiny": (("bfp8",), (1, 32), (128,), 4),
}


def measure(replica, users: int, prompt: int, steps: int) -> tuple[float, float]:
    """(seconds to a first token, seconds of a step). The first token is of one prompt, compiled before."""
    import torch

    from models.demos.qwen25_7b.plans.blocks import attention_tables, equal_shares
    from models.demos.qwen25_7b.serving.prefill_batch import Prompt, plan_prefill

    shares = equal_shares(replica.blocks, replica.batch)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(
        replica.model.config.qwen.vocab_size, (prompt,), generator=generator
    ).tolist()
    firsts = []
    for user in (*range(users), 0, 0):  # the first run compiles, the last two count
        begin = time.perf_counter()
        batches = plan_prefill(
            [Prompt(user, tokens, 0, shares[user])], replica.model.max_prefill_rows, replica.block
        )
        for batch in batches:
            replica.prefill(batch)
        first = replica.read_tokens()
        firsts.append(time.perf_counter() - begin)
    replica.inputs.write_slots(
        first[: replica.batch], [prompt] * replica.batch, attention_tables(shares, replica.width)
    )
    for _ in range(WARM):
        replica.launch_decode()
        replica.read_tokens()
    begin = time.perf_counter()
    replica.launch_decode()
    for _ in range(steps - 1):  # one step ahead of the reads, as in Generator
        replica.launch_decode()
        replica.read_tokens()
    replica.read_tokens()
    return min(firsts[-2:]), (time.perf_counter() - begin) / steps


def rows(mesh: str, backend: str, size: str, save) -> None:
    from models.demos.qwen25_7b.config import BFP8, PERFORMANCE, QWEN25_7B
    from models.demos.qwen25_7b.plans.memory_budget import step_bytes
    from models.demos.qwen25_7b.reference.hf import random_weights
    from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
    from models.demos.qwen25_7b.serving.replica import Replica
    from models.demos.qwen25_7b.weights.checkpoint import Checkpoint

    recipes, crowds, prompts, steps = CASES[size]
    source = random_weights(QWEN25_7B) if size == "7b" else Checkpoint.open(SMALL_CHECKPOINT)
    config = QWEN25_7B if size == "7b" else source.config
    found = []
    with open_replicas(mesh, machine(mesh).row, queues=command_queues()) as devices:
        for recipe in (r for r in (BFP8, PERFORMANCE) if f"{r}" in recipes):
            for users in crowds:
                for prompt in prompts:
                    how = dict(
                        users=users,
                        max_seq_len=prompt + 2 * steps,
                        queues=command_queues(),
                        traced=True,
                    )
                    row = {"recipe": f"{recipe}", "users": users, "prompt": prompt}
                    say(f"running {row}")
                    if size == "7b":
                        row["modeled_ms"] = modeled(devices[0], backend, recipe, users, prompt)
                    try:
                        replica = Replica.load(devices[0], source, config, recipe, **how)
                    except UserError as error:
                        found.append(row | {"refused": f"{error}"})
                        continue
                    first, step = measure(replica, users, prompt, steps)
                    floor = (
                        step_bytes(
                            config, replica.model.config.parallel, recipe, users, prompt
                        ).weights
                        / DRAM_BYTES_PER_SECOND
                    )
                    replica.close()
                    del replica
                    row |= {
                        "first_token_ms": 1e3 * first,
                        "step_ms": 1e3 * step,
                        "share_of_dram": floor / step,
                    }
                    found.append(row)
                    save(found)
                    say(f"{row}")
                    if step < floor:
                        raise UserError(
                            f"a step of {1e3 * step:.2f} ms is faster than DRAM gives the weights out: the measurement is wrong"
                        )


def modeled(device, backend: str, recipe, users: int, position: int) -> Optional[float]:
    """Milliseconds of a step."""
    from models.demos.qwen25_7b.perf.step_model import model_decode
    from models.demos.qwen25_7b.tt.placement import links_between

    with host_alone(backend):
        try:
            model, _ = model_decode(
                device, recipe, users=users, position=position, links=links_between(device)
            )
        except UserError:  # does not fit
            return None
    return 1e3 * model.seconds


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _main(argv))


def _main(argv: list[str] | None) -> None:
    quiet_libraries()
    parser = Parser(prog="python -m models.demos.qwen25_7b.bringup.speed", description=__doc__)
    add_machine(parser)
    parser.add_argument("--size", choices=tuple(CASES), default="7b", help="dims")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder of the report"
    )
    args = parser.parse_args(argv)
    backend = select_backend(args.backend, args.mesh)

    def save(found: list[dict[str, Any]]) -> None:
        (args.out / "speed.json").write_text(json.dumps(found, indent=1))

    rows(args.mesh, backend, args.size, save)


if __name__ == "__main__":
    run(main)
