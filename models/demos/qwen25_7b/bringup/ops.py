"""The distinct operations of a decode step and of a prompt: recorded on the golden mesh, replayed on the machine.

`record` runs the model once without traces; golden-mesh record keeps what it calls. `replay` writes OUT/ops.json: rows of
golden_mesh.replay, and rows of variants, which are operations with other settings that the plans could choose.
"""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator

from models.demos.qwen25_7b.cli.command import quiet_libraries, run, status_of
from models.demos.qwen25_7b.cli.options import Parser, add_machine
from models.demos.qwen25_7b.cli.terminal import say
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.plans.machines import machine
from models.demos.qwen25_7b.plans.parallel_plan import MAX_USERS
from models.demos.qwen25_7b.tt.mesh import open_replicas, select_backend

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
    "ttnn.linear": {"math_fidelity": ("LoFi", "HiFi2", "HiFi3", "HiFi4")},
    "ttnn.transformer.paged_scaled_dot_product_attention_decode": {
        "k_chunk_size": (32, 64, 128, 256),
        "max_cores_per_head_batch": (1, 2, 4, 8, 16),
    },
}


def record(mesh: str, size: str) -> None:
    """A prompt and two steps of layers 0 and 1 of the 7B, or of the small checkpoint, with full batches."""
    import torch

    from models.demos.qwen25_7b.config import BFP8, QWEN25_7B
    from models.demos.qwen25_7b.plans.blocks import attention_tables, equal_shares
    from models.demos.qwen25_7b.reference.hf import random_weights
    from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
    from models.demos.qwen25_7b.serving.prefill_batch import Prompt, plan_prefill
    from models.demos.qwen25_7b.serving.replica import Replica
    from models.demos.qwen25_7b.weights.checkpoint import Checkpoint

    config = replace(QWEN25_7B, num_hidden_layers=2)
    source = random_weights(config) if size == "7b" else Checkpoint.open(SMALL_CHECKPOINT)
    config = config if size == "7b" else replace(source.config, num_hidden_layers=2)
    with open_replicas(mesh, machine(mesh).row) as devices:
        how = dict(users=MAX_USERS, max_seq_len=CONTEXT, traced=False)
        replica = Replica.load(devices[0], source, config, BFP8, **how)
        shares = equal_shares(replica.blocks, replica.batch)
        tokens = torch.randint(
            config.vocab_size, (PROMPT,), generator=torch.Generator().manual_seed(0)
        ).tolist()
        for batch in plan_prefill(
            [Prompt(0, tokens, 0, shares[0])], replica.model.max_prefill_rows, replica.block
        ):
            replica.prefill(batch)
        first = replica.read_tokens()
        tables = attention_tables(shares, replica.width)
        replica.inputs.write_slots(first[: replica.batch], [PROMPT] * replica.batch, tables)
        for _ in range(2):
            replica.launch_decode()
            replica.read_tokens()
        other_all_reduces(replica.model.config, devices[0])
        replica.close()


def other_all_reduces(model_config, device) -> None:
    """Run the all-reduces of a step that the plan could have chosen: two methods, and partial sums in bfloat8_b."""
    import torch

    from models.demos.qwen25_7b.tt.linear import TtAllReduce
    from models.demos.qwen25_7b.tt.placement import replicate

    decode, rows = model_config.decode, torch.randn(1, 1, 32, model_config.qwen.hidden_size)
    if decode.all_reduce.chips == 1:
        return
    for method, dtype in ALL_REDUCES:
        plan = replace(decode.all_reduce, method=method, dtype=dtype)
        total = TtAllReduce(device, replace(model_config, decode=replace(decode, all_reduce=plan)))
        how = dict(memory_config=decode.residual_memory)
        total.forward_decode(replicate(rows, device, total.partial_sum_dtype, **how))


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
    if isinstance(plain, dict):
        if name in plain:
            is_enum = isinstance(plain[name], tuple)
            before = plain[name][1][1] if is_enum else plain[name]
            if is_enum:
                plain[name][1][1] = value
            else:
                plain[name] = value
            return before != value
        return any(set_field(item, name, value) for item in plain.values())
    if isinstance(plain, (list, tuple)):
        return any(set_field(item, name, value) for item in plain)
    return False


def replay_record(mesh: str, out: Path, calls: int) -> None:
    """UserError, after the last operation: operations with wrong values, or that the library refuses."""
    from golden_mesh import replay as replays

    kept = replays.load(out / "ops.pt")
    rows, wrong = [], []

    def save() -> None:
        (out / "ops.json").write_text(json.dumps(rows, indent=1))

    with open_replicas(mesh, machine(mesh).row) as devices:
        for row in replays.replay(devices[0], kept, calls, say):
            rows.append(row)
            save()
            if row["failed"] or (row["error"] or 0) > WRONG:
                wrong.append(row["shown"])
        others = list(variants(kept["ops"]))
        for op, row in zip(others, replays.replay(devices[0], kept | {"ops": others}, calls, say)):
            rows.append(row | {"setting": op["setting"], "of": op["of"]})
            save()
    if wrong:
        raise UserError(
            f"{len(wrong)} of {len(kept['ops'])} operations are wrong or refused, the first: {wrong[0]}"
        )


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _main(argv))


def _main(argv: list[str] | None) -> None:
    quiet_libraries()
    parser = Parser(prog="python -m models.demos.qwen25_7b.bringup.ops", description=__doc__)
    parser.add_argument("command", choices=("record", "replay"))
    add_machine(parser)
    parser.add_argument("--size", choices=("tiny", "7b"), default="7b", help="dims")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the report, for replay")
    args = parser.parse_args(argv)
    select_backend("golden" if args.command == "record" else args.backend, args.mesh)
    if args.command == "record":
        record(args.mesh, args.size)
    else:
        replay_record(args.mesh, args.out, calls=20 if args.size == "7b" else 1)


if __name__ == "__main__":
    run(main)
