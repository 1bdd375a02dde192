"""Seconds of a step and of a first token: python -m qwen25_7b_lab.bringup.speed --mesh N300 --out DIR

Writes OUT/speed.json, a row a case, beside the modeled step. Weights are random, of the 7B's shapes.
"""

import argparse
import time
from dataclasses import replace
from itertools import product
from typing import Any, Optional

from models.demos.qwen25_7b.cli.terminal import say
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.files import write_json
from models.demos.qwen25_7b.plans.machines import Split
from models.demos.qwen25_7b.tt.mesh import command_queues, open_replicas, select_backend

from ..options import host_alone
from .stages import run_program

WARM = 3  # steps
TRANSFERS = "writes", "reads", "bytes read"  # between host and chips
# By size: recipes, users, prompts, steps.
CASES = {"7b": (("bfp8", "performance"), (1, 32), (128, 1024, 8192), 100), "tiny": (("bfp8",), (1, 32), (128,), 4)}


def weights(size: str, **fields) -> tuple[Any, Any]:
    """(source, config): random weights of the 7B's shapes, or the small checkpoint. fields: of the config."""
    from models.demos.qwen25_7b.config import QWEN25_7B
    from models.demos.qwen25_7b.reference.hf import random_weights
    from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
    from models.demos.qwen25_7b.weights.checkpoint import Checkpoint

    if size == "7b":
        config = replace(QWEN25_7B, **fields)
        return random_weights(config), config
    source = Checkpoint.open(SMALL_CHECKPOINT)
    return source, replace(source.config, **fields)


def prefill(replica, prompt: int) -> float:
    """Seconds to the first token of a random prompt in slot 0. The next step continues every slot at its end."""
    import torch

    from models.demos.qwen25_7b.engine.prefill_batch import Prompt
    from models.demos.qwen25_7b.plans.blocks import attention_tables, equal_shares

    shares, seeded = equal_shares(replica.blocks, replica.slots), torch.Generator().manual_seed(0)
    tokens = torch.randint(replica.model.model_config.dims.vocab_size, (prompt,), generator=seeded).tolist()
    begin = time.perf_counter()
    for batch in replica.batches([Prompt(0, tokens, 0, shares[0])]):
        replica.prefill(batch)
    first = replica.read_tokens()[: replica.slots]
    seconds = time.perf_counter() - begin
    replica.inputs.write_slots(first, [prompt] * replica.slots, attention_tables(shares, replica.width))
    return seconds


def measure(replica, prompt: int, steps: int) -> tuple[float, float, dict[str, float]]:
    """(seconds to a first token of one prompt, compiled before; seconds of a step of all slots; its transfers)."""
    _, *firsts = (prefill(replica, prompt) for _ in range(3))
    for _ in range(WARM):
        replica.launch_decode()
        replica.read_tokens()
    replica.queues.transfers.clear()
    begin = time.perf_counter()
    replica.launch_decode()
    for _ in range(steps - 1):  # one step ahead of the reads, as in Generator
        replica.launch_decode()
        replica.read_tokens()
    replica.read_tokens()
    seconds = (time.perf_counter() - begin) / steps
    return min(firsts), seconds, {name: replica.queues.transfers[name] / steps for name in TRANSFERS}


def speed(args: argparse.Namespace) -> None:
    """UserError: a step that is too fast to be true."""
    backend = select_backend(args.backend, args.mesh)
    from models.demos.qwen25_7b.config import RECIPES
    from models.demos.qwen25_7b.engine.replica import Replica

    from ..perf.plan_tables import step_bytes

    names, crowds, prompts, steps = CASES[args.size]
    source, config = weights(args.size)
    queues, found = command_queues(), []
    with open_replicas(Split.of(args.mesh), queues=queues) as devices:
        for name, users, prompt in product(names, crowds, prompts):
            row, recipe = {"recipe": name, "users": users, "prompt": prompt}, RECIPES[name]
            say(f"running {row}")
            if args.size == "7b":
                row["modeled_ms"] = modeled(devices[0], backend, recipe, users, prompt)
            try:
                length = prompt + 2 * steps
                replica = Replica.load(
                    devices[0], source, config, recipe, users=users, max_seq_len=length, queues=queues
                )
            except UserError as error:
                row["refused"] = f"{error}"
            else:
                first, step, transfers = measure(replica, prompt, steps)
                read = step_bytes(replica.model.model_config, users, prompt).weights
                share = read / replica.model.model_config.chip.bandwidth / step
                row |= dict(first_token_ms=1e3 * first, step_ms=1e3 * step, share_of_dram=share, transfers=transfers)
                replica.close()
                del replica
            found.append(row)
            write_json(args.out / "speed.json", found)
            say(f"{row}")
            if row.get("share_of_dram", 0) > 1:
                raise UserError(
                    f"a step of {row['step_ms']:.2f} ms is faster than DRAM gives the weights out: the measurement is "
                    "wrong"
                )


def modeled(device, backend: str, recipe, users: int, position: int) -> Optional[float]:
    """Milliseconds of a step."""
    from models.demos.qwen25_7b.config import QWEN25_7B
    from models.demos.qwen25_7b.tt.placement import links_between

    from ..perf.step_model import model_decode

    links = links_between(device)
    with host_alone(backend):
        try:
            return 1e3 * model_decode(device, QWEN25_7B, recipe, users=users, position=position, links=links)[0].seconds
        except UserError:  # does not fit
            return None


if __name__ == "__main__":
    run_program(__doc__, speed)
