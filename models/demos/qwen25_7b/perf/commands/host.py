"""What a decode step costs the host: 28 layers, 32 users, as Python and ttnn see it.

The dims are the small checkpoint's (the host makes the same calls for any); on a golden mesh its values are off, so what is
left is Python and the real library, without a device.
"""

import argparse
from dataclasses import replace

from models.common.mesh import (
    command_queues,
    describe_backend,
    host_alone,
    machine,
    open_replicas,
    select_backend,
    traces_available,
)
from models.common.options import add_machine
from models.demos.qwen25_7b.perf.options import check_machine

USERS, LAYERS = 32, 28


def add_options(parser: argparse.ArgumentParser) -> None:
    add_machine(parser)


def table(args: argparse.Namespace) -> str:
    check_machine(args)
    kind = machine(args.mesh)
    backend = select_backend(args.backend, kind.name)
    from models.demos.qwen25_7b.config import BFP8, QwenConfig
    from models.demos.qwen25_7b.perf.host_time import host_time, steps_of
    from models.demos.qwen25_7b.reference.hf import random_weights
    from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
    from models.demos.qwen25_7b.serving.replica import Replica

    config = replace(QwenConfig.from_json(SMALL_CHECKPOINT / "config.json"), num_hidden_layers=LAYERS)
    rows = []
    with open_replicas(kind.name, kind.chips, queues=command_queues()) as (device,):
        how = dict(users=USERS, max_seq_len=1024, queues=command_queues())
        loaded = Replica.load(device, random_weights(config), config, BFP8, traced=False, **how)
        for traced in (True, False) if traces_available() else (False,):
            replica = Replica(loaded.model, loaded.caches, traced=traced, queues=command_queues())
            with host_alone(backend):
                for name, step in steps_of(replica).items():
                    whole, ours = host_time(step)
                    how = "traced" if traced else "op by op"
                    beside = f"{1e6 * ours:.0f} us" if traced else "-"
                    rows.append(f"| {how} | {name} | {1e6 * whole:,.0f} us | {beside} |")
                replica.close()
    return "\n".join(
        [
            f"{kind.name}, tp {kind.chips}, {LAYERS} layers, {USERS} users; below ttnn: {describe_backend(backend)}.",
            "",
            "| step | tokens | host time, median of 50 | of it outside ttnn's calls |",
            "|---|---|---|---|",
            *rows,
        ]
    )
