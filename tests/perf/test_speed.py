"""Milliseconds of a traced decode step and of a prompt, beside their modeled ranges. The model's weights are random.

`pytest tests/perf/test_speed.py --backend device --mesh N300 --size 7b` prints them. Below the golden mesh times say
nothing.
"""

import pytest
from qwen25_7b_lab.bringup.speed import measure, weights
from qwen25_7b_lab.perf.plan_tables import step_bytes
from qwen25_7b_lab.perf.step_model import model_decode, model_prompt
from qwen25_7b_lab.prices.prices import ranged
from qwen25_7b_lab.prices.published import span

from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.engine.replica import Replica
from models.demos.qwen25_7b.errors import UserError
from models.demos.qwen25_7b.tt.mesh import traces_available
from models.demos.qwen25_7b.tt.placement import links_between

PROMPT = 128  # tokens
STEPS = {"tiny": 4, "7b": 100}


@pytest.fixture(autouse=True)
def times_say_something(pytestconfig):
    if pytestconfig.backend == "golden" or not traces_available():
        pytest.skip("times are of a device with traces")


def modeled(mesh_device, config, users: int) -> tuple[str, str]:
    """The milliseconds of a step and of a prompt, or why a chip has none."""
    links = links_between(mesh_device)
    try:
        step, _ = model_decode(mesh_device, config, BFP8, users=users, position=PROMPT, links=links)
        prompt = model_prompt(mesh_device, config, BFP8, PROMPT, links)
    except UserError as error:
        return (f"not modeled: {error}", "not modeled")
    return tuple(f"modeled {ranged(1e3 * each.seconds, span())}" for each in (step, prompt))


@pytest.mark.parametrize("users", (1, 32))
def test_a_step_reads_its_weights_no_faster_than_dram_gives_them(
    mesh_device, mesh_name, size, queues, users, host_alone, capsys
):
    source, config = weights(size)
    with host_alone():
        of_step, of_prompt = modeled(mesh_device, config, users)
    context = PROMPT + 2 * STEPS[size]
    replica = Replica.load(mesh_device, source, config, BFP8, users=users, max_seq_len=context, queues=queues)
    first, seconds, _ = measure(replica, PROMPT, STEPS[size])
    table = replica.model.model_config
    replica.close()
    with capsys.disabled():
        print(
            f"\n{mesh_name}, {size}, {BFP8.name}, {users} users: step {1e3 * seconds:.2f} ms ({of_step}), "
            f"{users / seconds:.1f} tokens/s; first token of {PROMPT} {1e3 * first:.1f} ms ({of_prompt})"
        )
    assert seconds >= step_bytes(table, users, PROMPT).weights / table.chip.bandwidth
