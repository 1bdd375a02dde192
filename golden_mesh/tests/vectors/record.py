"""Records a Wormhole chip's results for small inputs: on silicon, or on the simulator that TT_METAL_SIMULATOR
names.

Usage:

    python record.py OUT.safetensors [part ...]        parts: elementwise norms matmuls attention attention_exp prefill

Format of a case NAME:

- The tensor NAME/out is the chip's result.
- The file's metadata has JSON under NAME: the op and its settings.
- Under "inputs" the JSON names the tensor of the file for each input.

Tensors are float32 or bfloat16, exactly as the chip held them. Block formats are stored as their values. A
tensor that several cases have is stored once. The script needs ttnn alone.
"""

import json
import sys

import torch
import ttnn
from safetensors.torch import save_file

F = ttnn.MathFidelity
FIDELITY = {"LoFi": F.LoFi, "HiFi2": F.HiFi2, "HiFi3": F.HiFi3, "HiFi4": F.HiFi4}
DTYPE = {
    "bfloat16": ttnn.bfloat16,
    "bfloat8_b": ttnn.bfloat8_b,
    "bfloat4_b": ttnn.bfloat4_b,
    "float32": ttnn.float32,
}
DECODE = "ttnn.transformer.paged_scaled_dot_product_attention_decode"

tensors: dict[str, torch.Tensor] = {}
cases: dict[str, dict] = {}
generator = torch.Generator().manual_seed(2025)


def rand(*shape, scale=1.0, shift=0.0, source=generator):
    return (torch.randn(*shape, generator=source) * scale + shift).bfloat16().float()


def kernel(fidelity, wide=True):
    return ttnn.WormholeComputeKernelConfig(
        math_fidelity=FIDELITY[fidelity],
        math_approx_mode=False,
        fp32_dest_acc_en=wide,
        packer_l1_acc=True,
    )


def attention_program(keys):
    return ttnn.SDPAProgramConfig(
        compute_with_storage_grid_size=(8, 8),
        q_chunk_size=32,
        k_chunk_size=keys,
        exp_approx_mode=False,
    )


def put(device, x, dtype="bfloat16", layout=ttnn.TILE_LAYOUT):
    return ttnn.from_torch(x, dtype=DTYPE[dtype], layout=layout, device=device)


def put_int(device, x):
    return ttnn.from_torch(x, dtype=ttnn.int32, layout=ttnn.ROW_MAJOR_LAYOUT, device=device)


def host(tensor) -> torch.Tensor:
    x = ttnn.to_torch(tensor)
    narrow = x.bfloat16()
    return (narrow if torch.equal(narrow.float(), x.float()) else x).contiguous().clone()


def keep(name, out, settings, **inputs):
    add(name, host(out), settings, {key: host(value) for key, value in inputs.items()})
    print(name, tuple(tensors[f"{name}/out"].shape), flush=True)


def add(name: str, out: torch.Tensor, settings: dict, inputs: dict[str, torch.Tensor]) -> None:
    """Keep a case. An attention's caches are cut down to the blocks that its positions reach."""
    if "page_table" in settings:
        blocks = [
            table[: p // 32 + 1] for table, p in zip(settings["page_table"], settings["positions"])
        ]
        used = sorted({block for row in blocks for block in row})
        settings = settings | {
            "page_table": [[used.index(b) for b in row] + [0] * (8 - len(row)) for row in blocks]
        }
        inputs = inputs | {key: inputs[key][used].clone() for key in "kv"}
    names = {}
    for key, value in inputs.items():
        known = (n for n, t in tensors.items() if t.dtype == value.dtype and torch.equal(t, value))
        names[key] = next(known, f"{name}/{key}")
        tensors[names[key]] = value
    tensors[f"{name}/out"] = out
    cases[name] = settings | {"inputs": names}


def save(path: str) -> None:
    save_file(tensors, path, metadata={name: json.dumps(case) for name, case in cases.items()})


def matmuls(device):
    for k in (32, 512):
        a, w = rand(1, 1, 32, k, shift=0.3), rand(1, 1, k, 64, scale=0.05)
        for dtype in ("bfloat16", "bfloat8_b", "bfloat4_b"):
            x, y = put(device, a), put(device, w, dtype)
            for fidelity in FIDELITY:
                for wide in (True, False):
                    result = "float32" if wide else "bfloat16"
                    out = ttnn.matmul(
                        x, y, dtype=DTYPE[result], compute_kernel_config=kernel(fidelity, wide)
                    )
                    keep(
                        f"matmul.k{k}.{dtype}.{fidelity}.{'fp32' if wide else 'bf16'}dest", out,
                        dict(op="ttnn.matmul", weight=dtype, fidelity=fidelity, fp32_dest_acc_en=wide, out=result),
                        in0=x, in1=y,
                    )  # fmt: skip


def elementwise(device):
    x, y = put(device, rand(1, 1, 32, 256, scale=2)), put(device, rand(1, 1, 32, 256, scale=2))
    for name, op in (("add", ttnn.add), ("multiply", ttnn.multiply)):
        keep(f"{name}.bf16", op(x, y), dict(op=f"ttnn.{name}"), in0=x, in1=y)
    gated = ttnn.mul(x, y, input_tensor_a_activations=[ttnn.UnaryOpType.SILU])
    keep(
        "multiply.silu.bf16",
        gated,
        dict(op="ttnn.mul", input_tensor_a_activations="SILU"),
        in0=x,
        in1=y,
    )
    for name in ("silu", "exp", "sigmoid"):
        keep(f"{name}.bf16", getattr(ttnn, name)(x), dict(op=f"ttnn.{name}"), in0=x)
    wide = put(device, rand(1, 1, 32, 256) * torch.logspace(-3, 2, 256))
    for dtype in ("bfloat8_b", "bfloat4_b"):
        keep(
            f"typecast.{dtype}",
            ttnn.typecast(wide, DTYPE[dtype]),
            dict(op="ttnn.typecast", to=dtype),
            in0=wide,
        )


def norms(device):
    x = rand(1, 1, 32, 512)
    x[..., 7] *= 300
    x, g = (
        put(device, x),
        put(device, rand(1, 1, 16, 32, shift=1, scale=0.2), layout=ttnn.ROW_MAJOR_LAYOUT),
    )
    for fidelity in ("HiFi2", "HiFi3", "HiFi4"):
        out = ttnn.rms_norm(x, weight=g, epsilon=1e-6, compute_kernel_config=kernel(fidelity))
        keep(
            f"rms_norm.{fidelity}",
            out,
            dict(op="ttnn.rms_norm", epsilon=1e-6, fidelity=fidelity),
            in0=x,
            weight=g,
        )


def decode(device, name, q, k, v, table, positions, keys, fidelity, **settings):
    """One call of decode attention."""
    scale = q.shape[-1] ** -0.5
    out = ttnn.transformer.paged_scaled_dot_product_attention_decode(
        q, k, v, put_int(device, table), cur_pos_tensor=put_int(device, positions), scale=scale,
        program_config=attention_program(keys), compute_kernel_config=kernel(fidelity),
        memory_config=ttnn.L1_MEMORY_CONFIG,
    )  # fmt: skip
    where = dict(page_table=table.tolist(), positions=positions.tolist())
    keep(
        name,
        out,
        dict(op=DECODE, fidelity=fidelity, k_chunk_size=keys, scale=scale, **where, **settings),
        q=q,
        k=k,
        v=v,
    )


def attention(device):
    heads, d, users, blocks = 7, 128, 4, 32
    q = rand(1, users, 32, d)[:, :, :heads]
    k, v = rand(blocks, 1, 32, d), rand(blocks, 1, 32, d)
    table = torch.randperm(blocks, generator=generator).reshape(users, blocks // users).int()
    positions = torch.tensor([200, 31, 32, 0], dtype=torch.int32)
    for cache in ("bfloat16", "bfloat8_b"):
        for fidelity in ("HiFi2", "HiFi3", "HiFi4"):
            for keys in (32, 128):
                Q, K, V = put(device, q), put(device, k, cache), put(device, v, cache)
                name = f"sdpa_decode.{cache}.{fidelity}.k_chunk{keys}"
                decode(device, name, Q, K, V, table, positions, keys, fidelity, cache=cache)


def attention_exp(device):
    """Show decode attention's softmax directly.

    V is one-hot, so a head's output is the weights of 128 keys. K and q set the scores. Full tiles of heads
    (over 16 heads) use another exp than half tiles. Seven heads are recorded both ways.
    """
    d, tokens = 128, 128
    own = torch.Generator().manual_seed(7)
    k = torch.zeros(4, 1, 32, d)
    k[:, 0, :, 0] = (torch.arange(tokens) / 16).reshape(
        4, 32
    )  # scores: 0 to 7.94 times q's first value times scale
    v = torch.eye(tokens).reshape(4, 1, 32, d)
    table, at = (
        torch.arange(8).clamp(max=3).int()[None],
        torch.tensor([tokens - 1], dtype=torch.int32),
    )
    q = torch.zeros(1, 1, 7, d)
    q[0, 0, :, 0] = torch.tensor([1.0, 4.0, 8.0, 16.0, 32.0, -11.0, -24.0])
    noise, k2, v2 = (rand(*s, source=own) for s in ((1, 1, 7, d), (4, 1, 32, d), (4, 1, 32, d)))
    for name, rows, keys, values in (("weights", q, k, v), ("normal", noise, k2, v2)):
        for heads in (7, 32):
            Q = put(device, rows)
            if heads == 32:
                Q = ttnn.reshape(
                    Q, (1, 1, 32, d), (1, 1, 32, d)
                )  # a view of the whole tile, with all of its rows
            K, V = put(device, keys), put(device, values)
            decode(
                device,
                f"sdpa_decode.{name}.heads{heads}",
                Q,
                K,
                V,
                table,
                at,
                32,
                "HiFi3",
                heads=heads,
                real_heads=7,
            )


def prefill(device):
    """Prefill's attention, and rotary embedding."""
    own = torch.Generator().manual_seed(8)
    heads, d, s = 7, 128, 64
    q, k, v = (rand(1, n, s, d, source=own) for n in (heads, 1, 1))
    Q, K, V, X = (put(device, x) for x in (q, k, v, q[:, :3]))
    for fidelity in ("HiFi2", "HiFi3"):
        out = ttnn.transformer.scaled_dot_product_attention(
            Q,
            K,
            V,
            is_causal=True,
            program_config=attention_program(32),
            compute_kernel_config=kernel(fidelity),
        )
        settings = dict(
            op="ttnn.transformer.scaled_dot_product_attention", fidelity=fidelity, q_chunk_size=32
        )
        keep(f"sdpa_prefill.{fidelity}", out, settings | dict(k_chunk_size=32), q=Q, k=K, v=V)
    angle = torch.outer(torch.arange(s).float(), 1e6 ** (-torch.arange(0, d, 2).float() / d))
    cos, sin = (torch.stack([f(angle)] * 2, -1).reshape(1, 1, s, d) for f in (torch.cos, torch.sin))
    swap = torch.zeros(1, 1, 32, 32)
    for i in range(0, 32, 2):
        swap[..., i, i + 1], swap[..., i + 1, i] = 1, -1
    C, S, W = (put(device, x) for x in (cos, sin, swap))
    for fidelity in ("HiFi2", "HiFi3"):
        out = ttnn.experimental.rotary_embedding_llama(
            X, C, S, W, is_decode_mode=False, compute_kernel_config=kernel(fidelity)
        )
        settings = dict(op="ttnn.experimental.rotary_embedding_llama", fidelity=fidelity)
        keep(f"rotary.{fidelity}", out, settings, in0=X, cos=C, sin=S, trans_mat=W)


def main():
    device = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))
    for part in (elementwise, norms, matmuls, attention, attention_exp, prefill):
        if part.__name__ in sys.argv[2:] or len(sys.argv) == 2:
            part(device)
            save(sys.argv[1])
    ttnn.close_mesh_device(device)


if __name__ == "__main__":
    main()
