"""Data parallelism with a MeshDevice, on one module: each chip runs the whole MLP on its own users.

    python models/demos/qwen25_7b/demo/data_parallel.py --mesh N300

The batch is cut over the rows of the mesh (ShardTensorToMesh), the weights are the same on every row, and the results are put
together again (ConcatMeshToTensor). Nothing in TtQwenMLP knows of it.
"""

import io
import os
import sys
from contextlib import redirect_stdout
from typing import Callable

sys.path.insert(0, os.path.realpath(f"{__file__}/../../../../.."))  # so that the file runs from a plain checkout

from models.common.command import quiet_libraries, run, status_of  # noqa: E402
from models.common.mesh import machine, open_mesh, select_backend  # noqa: E402
from models.common.options import Parser, add_machine  # noqa: E402
from models.common.terminal import say  # noqa: E402


def show_mlp(mesh: str, backend: str) -> None:
    quiet_libraries()
    chips = machine(mesh).chips
    select_backend(backend, mesh)
    import torch
    import ttnn
    from transformers import AutoModelForCausalLM

    from models.common.metrics import closeness
    from models.demos.qwen25_7b.config import BF16, ParallelPlan
    from models.demos.qwen25_7b.plans.decode_plan import DecodePlan
    from models.demos.qwen25_7b.plans.grids import worker_grid
    from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
    from models.demos.qwen25_7b.tt.collectives import TtAllReduce
    from models.demos.qwen25_7b.tt.mlp import TtQwenMLP
    from models.demos.qwen25_7b.weights import Checkpoint, ModelWeights

    checkpoint = Checkpoint.open(SMALL_CHECKPOINT)
    config, plan = checkpoint.config, ParallelPlan.make(checkpoint.config, tp=1)
    with open_mesh(mesh, shape=(chips, 1)) as mesh_device:
        say(drawn(ttnn.visualize_mesh_device, mesh_device), end="")
        decode = DecodePlan.make(config, plan, worker_grid(mesh_device), users=32)
        weights = ModelWeights(checkpoint, config, plan).mlp(0)
        mlp = TtQwenMLP(
            mesh_device, weights, config, plan, BF16, decode, TtAllReduce(mesh_device, decode, BF16.summands)
        )

        users = torch.randn(chips, 1, 32, config.hidden_size)  # 32 users a chip
        x = ttnn.from_torch(
            users, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh_device,
            memory_config=decode.residual_memory, mesh_mapper=ttnn.ShardTensorToMesh(mesh_device, dim=0),
        )  # fmt: skip
        say(drawn(ttnn.visualize_tensor, x), end="")
        y = mlp.forward_decode(x)
        result = ttnn.to_torch(y, mesh_composer=ttnn.ConcatMeshToTensor(mesh_device, dim=0))  # [chips, 1, 32, hidden]

    reference = AutoModelForCausalLM.from_pretrained(SMALL_CHECKPOINT, dtype=torch.float32).model.layers[0].mlp
    say(f"{chips * 32} users on {chips} chip(s), against Hugging Face: {closeness(result, reference(users).detach())}")


def drawn(visualize: Callable, what: object) -> str:
    """What ttnn would print, for `say` to show: it knows what to do where stdout lacks a character or is full."""
    with redirect_stdout(io.StringIO()) as picture:
        visualize(what)
    return picture.getvalue()


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _show(argv))


def _show(argv: list[str] | None) -> None:
    parser = Parser(description=__doc__.splitlines()[0])
    add_machine(parser)
    args = parser.parse_args(argv)
    show_mlp(args.mesh, args.backend)


if __name__ == "__main__":
    run(main)
