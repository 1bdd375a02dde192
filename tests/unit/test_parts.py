"""Parts of tensors: what they are narrowed, filled and joined to, and what reading them gives."""

import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.demos.qwen25_7b.weights import Constant, Equalised, Projection, Table, Taken, key_divisors, to_interleaved
from models.demos.qwen25_7b.weights.parts import VERSION

TENSORS = {
    "w": torch.arange(24 * 6).view(24, 6).bfloat16(),
    "v": -torch.arange(24 * 6).view(24, 6).bfloat16(),
    "bias": torch.arange(24).float(),
}


def read(part) -> torch.Tensor:
    return part.read(TENSORS.__getitem__)


def test_outputs_become_columns_and_inputs_rows():
    w = TENSORS["w"]
    assert read(Projection(0, (Taken("w", 3, 5),), 6)).equal(w[3:8].t())
    assert read(Projection(1, (Taken("w", 2, 3),), 24)).equal(w[:, 2:5].t())
    assert read(Projection(0, (Taken("bias", 3, 5),), 1)).equal(TENSORS["bias"][None, 3:8])
    assert read(Table("w", (12, 12))).equal(w.reshape(12, 12))


def test_a_head_in_pairs_is_reordered_by_itself():
    w = TENSORS["w"]
    part = Projection(0, (Taken("w", 8, 8, pairs=True), Taken("v", 0, 4), Constant(2, -1.0)), 6)
    heads = to_interleaved(w[8:16], dim=0)
    assert read(part).equal(torch.cat([heads, -w[:4], torch.full((2, 6), -1.0).bfloat16()]).t())
    assert part.tensors == ("w", "v") and part.shape == (6, 14)


def test_a_key_head_is_divided_by_its_bias_and_its_queries_multiplied():
    bias, w = TENSORS["bias"], TENSORS["w"].float()
    divisors = key_divisors(bias[16:24])
    assert (divisors > 1).any(), "no pair is loud: this would prove nothing"
    part = Projection(
        0, (Taken("w", 0, 8, True, Equalised("bias", 16)), Taken("w", 8, 8, True, Equalised("bias", 16, True))), 6
    )
    heads = [w[:8] / divisors[:, None], w[8:16] * divisors[:, None]]
    assert read(part).float().allclose(torch.cat([to_interleaved(head, dim=0) for head in heads]).t(), rtol=2**-8)
    assert part.tensors == ("w", "bias")
    assert read(part).dtype == torch.bfloat16, "a bias of another dtype scales, and is not there itself"


blocks = st.lists(
    st.one_of(
        st.builds(Constant, st.integers(1, 5), st.sampled_from([0.0, 2.0])),
        st.builds(Taken, st.sampled_from("wv"), st.integers(0, 12), st.integers(1, 8)),
    ),
    min_size=1,
    max_size=5,
)


@given(blocks, st.data())
def test_parts_are_cut_filled_and_joined_as_what_they_stand_for(blocks, data):
    part = Projection(0, tuple(blocks), 6)
    whole = read(part)
    first = data.draw(st.integers(0, part.extent - 1))
    count = data.draw(st.integers(1, part.extent - first))
    narrow = part.narrow(first, count)
    assert read(narrow).equal(whole[:, first : first + count])
    assert read(part.filled(part.extent + 3)).equal(torch.nn.functional.pad(whole, (0, 3)))
    assert part.filled(part.extent) == part
    assert read(part.beside(narrow)).equal(torch.cat([whole, read(narrow)], dim=1))


def test_tensors_of_several_dtypes_keep_the_widest():
    part = Projection(0, (Taken("w", 0, 2), Taken("f", 0, 2)), 6)
    got = part.read((TENSORS | {"f": torch.full((2, 6), 1 / 3)}).__getitem__)
    assert got.dtype == torch.float32 and (got[:, 2:] == torch.tensor(1 / 3)).all()


def test_whoever_changes_what_is_read_raises_the_version():
    """Tiles of the old kind would be taken for the new kind."""
    parts = [
        Projection(0, (Taken("w", 0, 8, pairs=True), Taken("v", 3, 5), Constant(3)), 6).narrow(8, 7).filled(9),
        Projection(0, (Taken("w", 0, 8, pairs=True),), 6),
        Projection(1, (Constant(1), Taken("w", 1, 4)), 24),
        Projection(0, (Taken("bias", 8, 8, pairs=True),), 1),
        Projection(
            0, (Taken("w", 0, 8, True, Equalised("bias", 16)), Taken("w", 8, 8, True, Equalised("bias", 16, True))), 6
        ),
        Table("v", (36, 4)),
    ]
    content = b"".join(read(part).float().numpy().tobytes() for part in parts)
    assert (VERSION, hashlib.sha256(content).hexdigest()[:16]) == (1, "b84ced697fc82086")


def test_a_head_in_pairs_cannot_be_cut():
    with pytest.raises(AssertionError, match="pairs"):
        Projection(0, (Taken("w", 0, 8, pairs=True),), 6).narrow(0, 4)
