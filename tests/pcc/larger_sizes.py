"""test_other_sizes.py for the larger sizes, by hand: they take minutes, and up to 9 GB of the host on a T3K.

    pytest --mesh T3K --tp 8 tests/pcc/larger_sizes.py

pytest collects this file where it is named only.
"""

import pytest

from tests.pcc.test_other_sizes import model_of
from tests.pcc.test_transformer import assert_hugging_faces_logits


@pytest.mark.parametrize("model", ["14B", "32B", "72B"])
def test_prompts_and_then_a_step_of_all_users(mesh_device, model):
    assert_hugging_faces_logits(mesh_device, model_of(model), steps=1)
