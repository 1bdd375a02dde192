"""Data parallelism with a MeshDevice, on one module: each chip runs the whole MLP on its own users.

    python models/demos/qwen25_7b/demo/data_parallel.py --mesh N300

The batch is cut over the rows of the mesh (ShardTensorToMesh), the weights are the same on every row, and the results are put
together again (ConcatMeshToTensor). Nothing in TtQwenMLP knows of it.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[4]))  # so that the file runs from a plain checkout

from models.common.command import status_of  # noqa: E402
from models.common.mesh import machine, open_mesh, select_backend  # noqa: E402


def run(mesh: str, backend: str) -> None:
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
        ttnn.visualize_mesh_device(mesh_device)
        decode = DecodePlan.make(config, plan, worker_grid(mesh_device), users=32)
        weights = ModelWeights(checkpoint, config, plan).mlp(0)
        mlp = TtQwenMLP(mesh_device, weights, config, plan, BF16, decode, TtAllReduce(mesh_device, decode))

        users = torch.randn(chips, 1, 32, config.hidden_size)  # 32 users a chip
        x = ttnn.from_torch(
            users, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh_device,
            memory_config=decode.residual_memory, mesh_mapper=ttnn.ShardTensorToMesh(mesh_device, dim=0),
        )  # fmt: skip
        ttnn.visualize_tensor(x)
        y = mlp.forward_decode(x)
        result = ttnn.to_torch(y, mesh_composer=ttnn.ConcatMeshToTensor(mesh_device, dim=0))  # [chips, 1, 32, hidden]

    reference = AutoModelForCausalLM.from_pretrained(SMALL_CHECKPOINT, dtype=torch.float32).model.layers[0].mlp
    print(
        f"{chips * 32} users on {chips} chip(s), against Hugging Face: {closeness(result, reference(users).detach())}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mesh", default="N300")
    parser.add_argument("--backend", default="auto", choices=("auto", "device", "golden"))
    args = parser.parse_args()
    return status_of(lambda: run(args.mesh, args.backend))


if __name__ == "__main__":
    sys.exit(main())
