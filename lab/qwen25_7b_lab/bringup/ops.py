"""The distinct operations of a decode step and of a prompt: recorded on the golden mesh, replayed on the machine.

`record` runs the model once without traces; golden-mesh record keeps what it calls. `replay` writes OUT/ops.json: rows
of golden_mesh.replay, and rows of variants, which are operations with other settings that the plans could choose.
"""

import argparse
from copy import deepcopy
from dataclasses import replace
from typing import Any, Iterator

from models.demos.qwen25_7b.cli.terminal import say
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.files import read_json, write_json
from models.demos.qwen25_7b.plans.machines import Split
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.tt.mesh import open_replicas, select_backend

from .speed import prefill, weights
from .stages import run_program

PROMPT, CONTEXT = 128, 1024  # tokens
WRONG = 0.05  # relative error of a value from which an operation counts as wrong
# Methods and formats of partial sums (plans/all_reduce_plan.py).
ALL_REDUCES = (
    ("all_reduce_async", "bfloat16"),
    ("all_reduce_async", "bfloat8_b"),
    ("reduce_scatter + all_gather", "bfloat16"),
)
# Operation: settings that the plans choose, by name, with their alternatives.
VARIANTS: dict[str, dict[str, tuple]] = {
    "ttnn.experimental.all_reduce_async": {"num_links": (1,)},
    "ttnn.reduce_scatter": {"num_links": (1,)},
    "ttnn.all_gather": {"num_links": (1,)},
    "ttnn.linear": {
        "math_fidelity": ("LoFi", "HiFi2", "HiFi3", "HiFi4"),
        "in0_block_w": (2, 4, 7, 8, 16, 28),  # `perf hops`: a width that a matmul does not have is refused
    },
    "ttnn.transformer.paged_scaled_dot_product_attention_decode": {
        "k_chunk_size": (32, 64, 128, 256),
        "max_cores_per_head_batch": (1, 2, 4, 8, 16),
    },
}


def record(args: argparse.Namespace) -> None:
    """A prompt and two steps of layers 0 and 1 of the 7B, or of the small checkpoint, with full batches."""
    select_backend("golden", args.mesh)
    from models.demos.qwen25_7b.config import BFP8
    from models.demos.qwen25_7b.engine.replica import Replica

    source, config = weights(args.size, num_hidden_layers=2)
    with open_replicas(Split.of(args.mesh)) as devices:
        replica = Replica.load(devices[0], source, config, BFP8, users=MAX_USERS, max_seq_len=CONTEXT, traced=False)
        prefill(replica, PROMPT)
        for _ in range(2):
            replica.launch_decode()
            replica.read_tokens()
        other_all_reduces(replica.model.model_config, devices[0])
        replica.close()


def other_all_reduces(model_config, device) -> None:
    """Run the all-reduces of a step that the plan could have chosen: two methods, and partial sums in bfloat8_b."""
    import torch

    from models.demos.qwen25_7b.tt.linear import TtAllReduce
    from models.demos.qwen25_7b.tt.placement import memory_config, replicate

    decode, rows = model_config.decode, torch.randn(1, 1, 32, model_config.dims.hidden_size)
    if decode.all_reduce.chips == 1:
        return
    for method, dtype in ALL_REDUCES:
        plan = replace(decode.all_reduce, method=method, dtype=dtype)
        total = TtAllReduce(device, replace(model_config, decode=replace(decode, all_reduce=plan)))
        memory = memory_config(decode.residual_memory)
        total.forward_decode(replicate(rows, device, total.partial_sum_dtype, memory_config=memory))


def variants(ops: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The operations with one setting changed; shown names it. The values are those of other settings."""
    for i, op in enumerate(ops):
        for setting, choices in VARIANTS.get(op["op"], {}).items():
            for choice in choices:
                other = deepcopy(op["arguments"])
                if set_field(other, setting, choice):
                    yield op | {"arguments": other, "setting": f"{setting}={choice}", "of": i}


def set_field(plain: Any, name: str, value: Any) -> bool:
    """Set a config's field, anywhere in an operation's arguments, to another value. Whether it changed."""
    if isinstance(plain, dict) and name in plain:
        is_enum = isinstance(plain[name], tuple)
        place, key = (plain[name][1], 1) if is_enum else (plain, name)
        before, place[key] = place[key], value
        return before != value
    inner = plain.values() if isinstance(plain, dict) else plain
    return isinstance(plain, (dict, list, tuple)) and any(set_field(i, name, value) for i in inner)


def replay(args: argparse.Namespace) -> None:
    """UserError, after the last operation: operations with wrong values, or that the library refuses."""
    select_backend(args.backend, args.mesh)
    from golden_mesh import replay as replays
    from models.demos.qwen25_7b.tt.placement import chip_of

    from ..perf.step_model import arch_of
    from ..prices.program import prices_of

    kept, calls = replays.load(args.out / "ops.pt"), 20 if args.size == "7b" else 1
    ops = [*kept["ops"], *variants(kept["ops"])]
    file = args.out / "ops.json"
    rows = read_json(file) if file.exists() else []  # what a stopped run has measured
    left = ops[len(rows) :]
    say(replays.HEADER)
    with open_replicas(Split.of(args.mesh)) as devices:
        arch = arch_of(chip_of(devices[0]))
        for op, row in zip(left, replays.replay(devices[0], kept | {"ops": left}, calls, say)):
            variant = {key: op[key] for key in ("setting", "of") if key in op}
            rows.append(row | prices_of(op, devices[0], arch) | variant)
            write_json(file, rows)
            say(f"{len(rows)} of {len(ops)} operations")
    of_plans = rows[: len(kept["ops"])]
    bad = [row for row in of_plans if row["failed"] or row.get("not_finite") or (row["error"] or 0) > WRONG]
    if bad:
        how = bad[0]["failed"] or f"wrong values, error {bad[0]['error']:.2g}"
        raise UserError(f"{len(bad)} of {len(kept['ops'])} operations failed, the first: {bad[0]['shown']}: {how}")


if __name__ == "__main__":
    run_program(__doc__, record, replay)
