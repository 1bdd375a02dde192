"""Two layers on one chip, written as for a card. Nothing here mentions the golden mesh."""

import torch
import ttnn

torch.manual_seed(0)
x, w1, w2 = (torch.randn(64, 512), torch.randn(512, 2048) / 512**0.5, torch.randn(2048, 512) / 2048**0.5)

device = ttnn.open_device(device_id=0)
a, b, c = (ttnn.from_torch(t, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device) for t in (x, w1, w2))
hidden = ttnn.linear(a, b, activation="gelu", memory_config=ttnn.L1_MEMORY_CONFIG)
y = ttnn.to_torch(ttnn.add(ttnn.linear(hidden, c), a)).float()
ttnn.deallocate(hidden)
ttnn.close_device(device)

wanted = torch.nn.functional.gelu(x @ w1) @ w2 + x
print(f"{ttnn.GetNumAvailableDevices()} chips")
print(f"correlation with float32: {torch.corrcoef(torch.stack((y.flatten(), wanted.flatten())))[0, 1]:.4f}")
