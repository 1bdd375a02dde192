"""Data parallelism with a MeshDevice: each chip runs the whole MLP on its own users. A tool beside the model.

    python models/demos/qwen25_7b/demo/data_parallel.py --mesh N300

ShardTensorToMesh cuts the batch over the rows of the mesh. Every row holds all weights.
ConcatMeshToTensor joins the results. TtQwenMLP has no code for it. The demo itself runs several
replicas, each on its own submesh: demo.py --mesh T3K --tp 2.
"""

import io
import os
import sys
from contextlib import redirect_stdout
from typing import Callable

sys.path.insert(
    0, os.path.realpath(f"{__file__}/../../../../..")
)  # so that the file runs from a plain checkout

from models.common.command import quiet_libraries, run, status_of  # noqa: E402
from models.common.machines import machine  # noqa: E402
from models.common.mesh import open_mesh, select_backend  # noqa: E402
from models.common.options import Parser, add_machine  # noqa: E402
from models.common.terminal import say  # noqa: E402


def show_mlp(mesh: str, backend: str) -> None:
    quiet_libraries()
    chips = machine(mesh).chips
    select_backend(backend, mesh)
    import torch
    import ttnn
    from transformers import AutoModelForCausalLM

    from models.common.metrics import compare
    from models.demos.qwen25_7b.config import BF16
    from models.demos.qwen25_7b.tt.linear import TtAllReduce
    from models.demos.qwen25_7b.tt.mlp import TtQwenMLP
    from models.demos.qwen25_7b.tt.model_config import TtModelConfig
    from models.demos.qwen25_7b.reference.small import SMALL_CHECKPOINT
    from models.demos.qwen25_7b.weights import Checkpoint, ModelWeights

    checkpoint = Checkpoint.open(SMALL_CHECKPOINT)
    with open_mesh(mesh, shape=(chips, 1)) as mesh_device:
        say(printed_by(ttnn.visualize_mesh_device, mesh_device), end="")
        config = TtModelConfig.make(mesh_device, checkpoint.config, BF16, batch=32, max_seq_len=128)
        weights = ModelWeights(checkpoint, config.qwen, config.parallel).mlp(0)
        mlp = TtQwenMLP(mesh_device, weights, config, all_reduce=TtAllReduce(mesh_device, config))

        users = torch.randn(chips, 1, 32, config.qwen.hidden_size)  # 32 users a chip
        x = ttnn.from_torch(
            users, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh_device,
            memory_config=config.decode.residual_memory, mesh_mapper=ttnn.ShardTensorToMesh(mesh_device, dim=0),
        )  # fmt: skip
        say(printed_by(ttnn.visualize_tensor, x), end="")
        y = mlp.forward_decode(x)
        result = ttnn.to_torch(
            y, mesh_composer=ttnn.ConcatMeshToTensor(mesh_device, dim=0)
        )  # [chips, 1, 32, hidden]

    reference = (
        AutoModelForCausalLM.from_pretrained(SMALL_CHECKPOINT, dtype=torch.float32)
        .model.layers[0]
        .mlp
    )
    say(
        f"{chips * 32} users on {chips} chip(s), against Hugging Face: {compare(result, reference(users).detach())}"
    )


def printed_by(visualize: Callable, what: object) -> str:
    """The picture that ttnn prints. `say` shows it, since it handles a poor locale and a full disk."""
    with redirect_stdout(io.StringIO()) as output:
        visualize(what)
    return output.getvalue()


def main(argv: list[str] | None = None) -> int:
    return status_of(lambda: _show(argv))


def _show(argv: list[str] | None) -> None:
    parser = Parser(description=__doc__)
    add_machine(parser)
    args = parser.parse_args(argv)
    show_mlp(args.mesh, args.backend)


if __name__ == "__main__":
    run(main)
