"""`perf run` prices a layer of this model as `perf model` does."""

from dataclasses import replace

from qwen25_7b_lab.perf.capture import CONTEXT, capture_step, one_layer_of_each_kind
from qwen25_7b_lab.perf.step_model import arch_of, model_step
from qwen25_7b_lab.prices.prices import cells, total

import golden_mesh
from models.demos.qwen25_7b.config import BFP8
from models.demos.qwen25_7b.tt.placement import chip_of, links_between

USERS, POSITION = 32, 1024


def test_a_layer_has_the_prices_of_perf_model(mesh_device, checkpoint, host_alone, recorder):
    from qwen25_7b_lab.prices.program import section

    config = replace(checkpoint.config, num_hidden_layers=1)
    links, chip = links_between(mesh_device), chip_of(mesh_device)
    with host_alone():
        with one_layer_of_each_kind(mesh_device, config, BFP8, USERS, CONTEXT) as replica:
            layer = replica.model.layers[0]
            layer.forward_decode = golden_mesh.captured("layer")(layer.forward_decode)
            replica.launch_decode()
        recorded = section(*next(recorder.captured()), links, POSITION)
        step = capture_step(mesh_device, config, BFP8, USERS)
    how = dict(chips=mesh_device.shape[1], grid_cores=chip.grid.cores, links=links)
    how |= dict(users=USERS, position=POSITION, arch=arch_of(chip))
    modeled = model_step(step, weights=0, **how).in_layer
    assert recorded.launches == len(step.layer)
    assert sorted(cells(recorded.rows, 4)) == sorted(cells(modeled, 4))
    assert total(recorded.rows, 4) == total(modeled, 4)
