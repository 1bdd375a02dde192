"""Prices of prefill batches equal those of the captured operations (golden_mesh.perf), at the 7B's dims."""

import pytest
from golden_mesh.perf.calibration import calibrate
from golden_mesh.perf.collective_prices import ROWS, collective_seconds
from golden_mesh.perf.op_costs import CYCLES_A_PHASE, DRAM, PHASES

from models.demos.qwen25_7b.config import PERFORMANCE, QWEN25_7B
from models.demos.qwen25_7b.perf.capture import capture_batch, layer_kinds, one_layer_of_each_kind
from models.demos.qwen25_7b.perf.commands import small_vocabulary
from models.demos.qwen25_7b.perf.step_model import model_step
from models.demos.qwen25_7b.plans import prefill_prices
from models.demos.qwen25_7b.plans.grids import worker_grid
from models.demos.qwen25_7b.plans.prefill_prices import EXCHANGES, PrefillPrices
from models.demos.qwen25_7b.serving.prefill_batch import PrefillBatch, PrefillChunk, Prompt
from models.demos.qwen25_7b.serving.prefill_packing import seconds_of
from models.demos.qwen25_7b.tt.placement import links_between

pytestmark = pytest.mark.usefixtures("without_values")

START = 1024  # of the chunks
# Ratio for 32 rows, at most. golden_mesh.perf counts all cores for a matmul with an interleaved result; here its own count.
FEW_ROWS = 1.6


def batch_of(rows: int, sequences: int) -> PrefillBatch:
    end = START + rows // sequences
    chunk = PrefillChunk(Prompt(0, range(end), START, range(end // 32)), START, START, end)
    return PrefillBatch(rows, (chunk,) * sequences, chunked=True, sequences=sequences)


def test_a_batch_costs_what_its_captured_operations_cost(mesh_device, recipe=PERFORMANCE):
    links = links_between(mesh_device)
    how = dict(chips=mesh_device.shape[1], grid_cores=worker_grid(mesh_device).cores)
    config = small_vocabulary()
    counts = list(layer_kinds(config, recipe).values())
    with one_layer_of_each_kind(mesh_device, config, recipe, 1, 2048) as replica:
        of_model = replica.model.config
        prices = PrefillPrices.make(config, of_model.parallel, recipe, of_model.decode, links)
        largest = prices.max_rows
        for rows, sequences, most in ((32, 1, FEW_ROWS), (largest, 8, 1.05)):
            batch = batch_of(rows, sequences)
            step = capture_batch(replica, batch, counts)
            at = batch.chunks[0].start
            rates = calibrate().rates
            model = model_step(step, rates, weights=0, links=links, users=1, position=at, **how)
            assert 0.95 < seconds_of(batch, prices) / model.seconds < most
            assert prices.operations == pytest.approx(model.launches, rel=0.03)


def test_rates_are_those_of_the_performance_model():
    rates = calibrate().rates
    assert prefill_prices.LAUNCH == pytest.approx(rates.launch, rel=0.01)
    assert prefill_prices.STREAMED == pytest.approx(rates.streamed * DRAM, rel=0.01)
    assert prefill_prices.SCATTERED == pytest.approx(rates.scattered * DRAM, rel=0.01)
    assert prefill_prices.UNPACK == rates.unpack
    cycles = {name: CYCLES_A_PHASE * phases for name, phases in PHASES.items()}
    assert prefill_prices.CYCLES.items() <= cycles.items()
    assert prefill_prices.ATTENTION_CYCLES == cycles["HiFi4"]  # as an operation without a fidelity


@pytest.mark.parametrize("rows", [128, 256, 512, 1024])
@pytest.mark.parametrize("chips, topology", EXCHANGES)
def test_an_exchange_costs_what_was_measured(chips, topology, rows):
    size = rows * QWEN25_7B.hidden_size * 2
    assert ("all_gather", chips, topology) in ROWS
    measured = sum(
        collective_seconds(op, chips, topology, size) for op in ("reduce_scatter", "all_gather")
    )
    price = EXCHANGES[chips, topology]
    modeled = price.once + size * (price.scattered_byte + price.gathered_byte)
    assert modeled == pytest.approx(measured, rel=0.1)
