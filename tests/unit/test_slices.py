"""Slices of tensors: narrowing, padding, joining and reading."""

import hashlib

import torch
from hypothesis import given
from hypothesis import strategies as st

from models.demos.qwen25_7b.config.rope import Rope
from models.demos.qwen25_7b.plans.rotary_pairs import to_interleaved
from models.demos.qwen25_7b.plans.slices import VERSION, Constant, KeyScaling, Projection, Table, TensorRange

ROPE = Rope(theta=1e4, scaling=None, context=256)
TENSORS = {
    "w": torch.arange(24 * 6).view(24, 6).bfloat16(),
    "v": -torch.arange(24 * 6).view(24, 6).bfloat16(),
    "bias": torch.arange(24).float(),
}


def read(weight_slice) -> torch.Tensor:
    return weight_slice.read(TENSORS.__getitem__)


def test_outputs_become_columns_and_inputs_rows():
    w = TENSORS["w"]
    assert read(Projection(0, (TensorRange("w", 3, 5),), 6)).equal(w[3:8].t())
    assert read(Projection(1, (TensorRange("w", 2, 3),), 24)).equal(w[:, 2:5].t())
    assert read(Projection(0, (TensorRange("bias", 3, 5),), 1)).equal(TENSORS["bias"][None, 3:8])
    assert read(Table("w", (24, 6))).equal(w)


def test_a_head_of_pairs_is_reordered_within_itself():
    w = TENSORS["w"]
    weight_slice = Projection(0, (TensorRange("w", 8, 8, pairs=True), TensorRange("v", 0, 4), Constant(2, -1.0)), 6)
    heads = to_interleaved(w[8:16], dim=0)
    assert read(weight_slice).equal(torch.cat([heads, -w[:4], torch.full((2, 6), -1.0).bfloat16()]).t())
    assert weight_slice.tensors == ("w", "v") and weight_slice.shape == (6, 14)


blocks = st.lists(
    st.one_of(
        st.builds(Constant, st.integers(1, 5), st.sampled_from([0.0, 2.0])),
        st.builds(TensorRange, st.sampled_from("wv"), st.integers(0, 12), st.integers(1, 8)),
    ),
    min_size=1,
    max_size=5,
)


@given(blocks, st.data())
def test_slices_are_narrowed_padded_and_joined(blocks, data):
    weight_slice = Projection(0, tuple(blocks), 6)
    whole = read(weight_slice)
    first = data.draw(st.integers(0, weight_slice.extent - 1))
    count = data.draw(st.integers(1, weight_slice.extent - first))
    narrow = weight_slice.narrow(first, count)
    assert read(narrow).equal(whole[:, first : first + count])
    assert read(weight_slice.padded(weight_slice.extent + 3)).equal(torch.nn.functional.pad(whole, (0, 3)))
    assert weight_slice.padded(weight_slice.extent) == weight_slice
    assert read(weight_slice.concat(narrow)).equal(torch.cat([whole, read(narrow)], dim=1))


def test_a_change_of_the_slices_needs_a_new_cache_version():
    """Without a new version, old cached tiles would be used as new ones."""
    slices = [
        Projection(0, (TensorRange("w", 0, 8, pairs=True), TensorRange("v", 3, 5), Constant(3)), 6)
        .narrow(8, 7)
        .padded(9),
        Projection(0, (TensorRange("w", 0, 8, pairs=True),), 6),
        Projection(1, (Constant(1), TensorRange("w", 1, 4)), 24),
        Projection(0, (TensorRange("bias", 8, 8, pairs=True),), 1),
        Projection(
            0,
            (
                TensorRange("w", 0, 8, True, KeyScaling("bias", 16)),
                TensorRange("w", 8, 8, True, KeyScaling("bias", 16, True)),
            ),
            6,
        ),
        *(
            Projection(0, (TensorRange("bias", 16, 8, True, KeyScaling("bias", 16, False, ROPE, part)),), 1)
            for part in (None, "plain", "centered")
        ),
        Table("v", (24, 6)),
    ]
    content = b"".join(read(weight_slice).float().numpy().tobytes() for weight_slice in slices)
    assert (VERSION, hashlib.sha256(content).hexdigest()[:16]) == (5, "de4eabb9b28c0bdc")
