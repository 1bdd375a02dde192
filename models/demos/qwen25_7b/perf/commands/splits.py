"""What each chip holds and moves when the 7B is split tp ways: counts from the plans, nothing measured."""

import argparse

from models.common.mesh import MACHINES
from models.demos.qwen25_7b.config import BFP8_KV8, QWEN25_7B, ParallelPlan

USERS, CONTEXT, POSITION = 32, 2048, 1024


def add_options(parser: argparse.ArgumentParser) -> None:
    """None: the table has every split of every machine."""


def table(args: argparse.Namespace) -> str:
    from models.demos.qwen25_7b.plans.blocks import BLOCK, blocks_for
    from models.demos.qwen25_7b.plans.memory_budget import memory_budget
    from models.demos.qwen25_7b.plans.step_bytes import step_bytes

    lines = [
        f"Recipe {BFP8_KV8.name}, {USERS} users a replica; cache for {CONTEXT} tokens a user, read at position {POSITION}.",
        "",
        "| machine | split | chip DRAM: weights + cache + activations | weights read a step (padding) | cache read a step "
        "| all-reduce, sent a layer |",
        "|---|---|---|---|---|---|",
    ]
    for kind in MACHINES.values():
        for tp in (8, 4, 2, 1):
            if kind.chips % tp:
                continue
            plan = ParallelPlan.make(QWEN25_7B, tp)
            room = memory_budget(QWEN25_7B, plan, BFP8_KV8, CONTEXT, blocks_for(USERS, CONTEXT, BLOCK))
            step = step_bytes(QWEN25_7B, plan, BFP8_KV8, USERS, POSITION)
            lines.append(
                f"| {kind.name} | tp {tp} x dp {kind.chips // tp} | {room.weights / 1e9:.2f} + {room.cache / 1e9:.2f} + "
                f"{room.activations / 1e9:.2f} = {room.total / 1e9:.2f} GB | {step.weights / 1e9:.3f} GB "
                f"({step.padding / (step.weights - step.padding):.1%}) | {step.cache / 1e9:.3f} GB | {step.sent / 1024:.0f} KiB |"
            )
    return "\n".join(lines)
