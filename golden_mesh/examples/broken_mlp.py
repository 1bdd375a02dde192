"""A gated MLP on one chip, with a fault of precision and one of meaning."""

import torch
import ttnn
from torch import nn

import golden_mesh


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(512, eps=1e-5)
        self.gate, self.up = nn.Linear(512, 1024, bias=False), nn.Linear(512, 1024, bias=False)
        self.down = nn.Linear(1024, 512, bias=False)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


torch.manual_seed(0)
mlp, x = Mlp().requires_grad_(False), torch.randn(1, 1, 64, 512)
with golden_mesh.reference(mlp):  # does nothing without golden-mesh compare
    expected = mlp(x)

device = ttnn.open_device(device_id=0)
place = dict(layout=ttnn.TILE_LAYOUT, device=device)
up = ttnn.from_torch(mlp.up.weight.T, dtype=ttnn.bfloat16, **place)
gate = ttnn.from_torch(mlp.gate.weight.T, dtype=ttnn.bfloat4_b, **place)
down = ttnn.from_torch(mlp.down.weight.T, dtype=ttnn.bfloat16, **place)
norm = ttnn.from_torch(mlp.norm.weight[None], dtype=ttnn.bfloat16, **place)

x = ttnn.from_torch(x, dtype=ttnn.bfloat16, **place)
y = ttnn.rms_norm(x, weight=norm, epsilon=1e-5)
g = ttnn.linear(y, gate)
y = ttnn.multiply(ttnn.silu(ttnn.linear(y, up)), g)  # silu belongs to the gate
y = ttnn.add(ttnn.linear(y, down), x)

result = ttnn.to_torch(y).float()
print(f"PCC {torch.corrcoef(torch.stack((result.flatten(), expected.flatten())))[0, 1]:.4f}")
ttnn.close_device(device)
