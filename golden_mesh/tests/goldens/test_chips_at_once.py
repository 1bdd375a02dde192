"""Chips that one call of a golden computes (registry.py) have the bits that a call for each gives."""

import pytest
import torch
import ttnn

from golden_mesh.mesh import steps
from golden_mesh.registry import GOLDENS
from goldens.support import assert_same, function_of, ints, kernel, sdpa_program
from goldens.test_rotary_goldens import FUSED, swap_matrix

HIFI2 = kernel("HiFi2", wide=False)
SDPA = sdpa_program(keys=64, approximate=True)
ATTEND = ttnn.transformer.scaled_dot_product_attention
PAGED = ttnn.transformer.paged_scaled_dot_product_attention_decode
CHUNKED = ttnn.transformer.chunked_scaled_dot_product_attention
SILU = ttnn.UnaryOpType.SILU
ROWS, Q, K = (1, 1, 33, 96), (2, 4, 64, 32), (2, 2, 64, 32)
CACHE, TABLE = (4, 2, 32, 32), ints([[0, 2], [3, 1]])
DECODE = (1, 2, 8, 32), CACHE, CACHE, TABLE, ints([40, 9])
LATER = (2, 4, 32, 32), CACHE, ints([[0, 2, 0, 0, 0, 0, 0, 0], [3, 1, 0, 0, 0, 0, 0, 0]])
SPECULATIVE = (1, 2, 64, 32), (4, 1, 32, 32), (4, 1, 32, 32), TABLE, ints([3, 9, 40, 41])
COS = torch.randn(1, 1, 64, 32)
# Calls of x, y ... and these. What is a shape differs by chip.
CASES = {
    "ttnn.linear(x, y, bias=z)": (ROWS, (96, 70), (1, 70)),
    "ttnn.linear(x, y, bias=z, dtype=ttnn.float32)": (torch.randn(ROWS), (1, 1, 96, 70), (1, 1, 33, 70)),
    "ttnn.linear(x, y, bias=z, activation='silu')": ((2, 3, 33, 96), torch.randn(96, 70), (1, 70)),
    "ttnn.linear(x, y, bias=z, activation='gelu')": ((33, 96), (96, 70), (1, 1, 1, 70)),
    "ttnn.linear(x, y, transpose_a=True, transpose_b=True)": ((1, 1, 96, 33), (1, 1, 70, 96)),
    "ttnn.linear(x, y, bias=z, compute_kernel_config=HIFI2)": (ROWS, (96, 70), (1, 70)),
    "ttnn.matmul(x, y)": ((2, 3, 33, 96), (2, 3, 96, 45)),
    "ttnn.matmul(x, x)": ((1, 2, 64, 64),),
    "ttnn.multiply(x, y, input_tensor_a_activations=[SILU])": ((2, 1, 33, 45), (2, 3, 1, 45)),
    "ttnn.add(x, y)": ((2, 1, 33, 45), (1, 45)),
    "ttnn.subtract(x, 0.3)": (ROWS,),
    "ATTEND(x, y, z, compute_kernel_config=EXACT)": (Q, K, K),
    "ATTEND(x, y, y, is_causal=False, attn_mask=z, program_config=SDPA)": (Q, K, torch.randn(2, 1, 64, 64)),
    "ATTEND(x, y, y, sliding_window_size=24, attention_sink=z)": (Q, torch.randn(K), torch.randn(1, 4, 1, 1)),
    "ATTEND(x, y, z, is_causal=False, cu_window_seqlens=u, program_config=SDPA)": (Q, K, K, ints([0, 32, 40, 64])),
    "ATTEND(x, x, x, output_concat_heads=True)": (Q,),
    "CHUNKED(x, y, z, u, 0, compute_kernel_config=EXACT)": ((2, 4, 33, 32), *DECODE[1:4]),
    "CHUNKED(x, y, y, z, chunk_start_idx_tensor=u, attention_sink=v)": (*LATER, ints([32]), torch.randn(1, 4, 1, 1)),
    "CHUNKED(x, y, y, z, 64, program_config=SDPA, sliding_window_size=24)": ((2, 4, 32, 32), (4, 1, 64, 32), TABLE),
    "PAGED(x, y, z, u, cur_pos_tensor=v, compute_kernel_config=EXACT)": DECODE,
    "PAGED(x, y, y, u, cur_pos_tensor=v, attention_sink=w)": (*DECODE, torch.randn(8, 32)),
    "PAGED(x, y, z, u, is_causal=False, attn_mask=v)": (*DECODE[:4], torch.randn(2, 1, 8, 64)),
    "PAGED(x, y, z, u, cur_pos_tensor=v, spec_multi_pos_tiles=2)": SPECULATIVE,
    "E.rotary_embedding_llama(x, y, y, z)": (Q, COS, torch.randn(1, 1, 32, 32)),
    "E.rotary_embedding_llama_fused_qk(x, y, z, u, v)": (*FUSED, swap_matrix(64)),
}


@pytest.mark.parametrize("call", CASES)
def test_equal_bits(several_chips, chips, monkeypatch, call):
    tensors = [chips.put_input(value) for value in CASES[call]]
    stacked, used = steps._stacked, set()

    def spy(step, *chips):
        found = stacked(step, *chips)
        used.add((step.golden.name, found is not None))
        return found

    def results():
        got = function_of(call, len(tensors), globals())(*tensors)
        return [chips.get(x) for x in (got if isinstance(got, (tuple, list)) else [got])]

    monkeypatch.setattr(steps, "_stacked", spy)
    at_once = results()
    (name,) = (name for name, found in used if found)
    monkeypatch.setattr(steps, "AT_ONCE", 0)
    used.clear()
    for got, want in zip(at_once, results(), strict=True):
        assert_same(got, want)
    assert used == {(name, False)}


def test_every_golden_of_several_chips_is_above():
    called = {function_of(call.split("(")[0], 0, globals())().python_fully_qualified_name for call in CASES}
    others = [golden for golden in GOLDENS.values() if golden.family != "eltwise_binary"]
    assert {golden.name for golden in others if golden.stacks or golden.lists} <= called
