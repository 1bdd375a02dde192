"""Prices of collectives equal the measured rows. Between two rows they lie between their times."""

import pytest
from golden_mesh.perf.calibration import calibrate
from golden_mesh.perf.collective_prices import ROWS, SMALLEST, collective_seconds

from models.demos.qwen25_7b.perf.all_reduce_prices import LAUNCH, cheapest, seconds, sent
from models.demos.qwen25_7b.plans.all_reduce_plan import SIZES, AllReducePlan


@pytest.mark.parametrize(
    "op, chips, topology, tensor_bytes, microseconds",
    [
        ("all_gather", 2, "line", 4 << 10, 7.09),
        ("all_gather", 8, "ring", 8 << 20, 374.56),
        ("reduce_scatter", 4, "line", 1 << 20, 101.24),
        ("all_reduce", 8, "ring", 256 << 10, 81.13),
        ("all_reduce", 2, "line", 32 << 20, 4550.12),
    ],
)
def test_a_measured_size_has_its_measured_time(op, chips, topology, tensor_bytes, microseconds):
    assert collective_seconds(op, chips, topology, tensor_bytes) == pytest.approx(
        1e-6 * microseconds
    )


@pytest.mark.parametrize(
    "terms, tensor_bytes, chips, topology, microseconds",
    [
        (("reduce_scatter", "all_gather"), 512 * 3584 * 2, 2, "line", 531),
        (("reduce_scatter", "all_gather"), 1024 * 3584 * 2, 8, "ring", 722),
        (("all_reduce",), 32 * 3584 * 2, 8, "ring", 75),
    ],
)
def test_the_models_tensors_are_priced_between_two_rows(
    terms, tensor_bytes, chips, topology, microseconds
):
    seconds = sum(collective_seconds(op, chips, topology, tensor_bytes) for op in terms)
    assert 1e6 * seconds == pytest.approx(microseconds, abs=1)


@pytest.mark.parametrize("kind", ROWS, ids=str)
def test_rows_end_at_the_same_size_and_more_bytes_beyond_them_cost_their_last_rate(kind):
    rows = ROWS[kind]
    last = SMALLEST[kind[1]] << (len(rows) - 1)
    assert last == 32 << 20
    beyond = collective_seconds(*kind, 2 * last)
    assert 1.8e-6 * rows[-1] < beyond < 2.1e-6 * rows[-1]
    assert collective_seconds(*kind, 1) == 1e-6 * rows[0]


def test_two_links_halve_the_bytes_and_not_the_latency():
    one, two = (collective_seconds("all_gather", 8, "line", 1 << 20, links) for links in (1, 2))
    assert two == collective_seconds("all_gather", 8, "line", 1 << 19)
    assert one / 2 < two < one
    assert collective_seconds("all_gather", 1, "line", 1 << 20) == 0.0


HIDDEN = 3584
ASYNC, TWO_OPS = "all_reduce_async", "reduce_scatter + all_gather"


@pytest.mark.parametrize(
    "chips, topology, narrowest, method, dtype",
    [
        (1, "line", "bfloat8_b", "none", "bfloat16"),
        (2, "line", "bfloat16", ASYNC, "bfloat16"),
        (2, "line", "bfloat8_b", ASYNC, "bfloat8_b"),
        (4, "line", "bfloat16", ASYNC, "bfloat16"),
        (4, "line", "bfloat8_b", ASYNC, "bfloat8_b"),
        (8, "line", "bfloat16", TWO_OPS, "bfloat16"),
        (8, "line", "bfloat8_b", TWO_OPS, "bfloat16"),
        (8, "ring", "bfloat16", TWO_OPS, "bfloat16"),
        (8, "ring", "bfloat8_b", TWO_OPS, "bfloat16"),
    ],
)
def test_the_cheapest_all_reduce_is_planned(chips, topology, narrowest, method, dtype):
    """On eight chips bfloat8_b saves too little to be worth its error."""
    plan = AllReducePlan.make(chips, topology, HIDDEN, narrowest)
    assert (plan.method, plan.dtype) == (method, dtype)


@pytest.mark.parametrize("links", [1, 2, 4])
@pytest.mark.parametrize("narrowest", ["bfloat16", "bfloat8_b"])
@pytest.mark.parametrize("chips, topology", SIZES)
def test_the_planned_all_reduce_is_the_cheapest_by_price_at_every_width(
    chips, topology, narrowest, links
):
    for hidden in range(32, 16384 + 1, 32):
        how = chips, topology, hidden, narrowest, links
        assert AllReducePlan.make(*how) == cheapest(*how), hidden


def test_an_async_all_reduce_is_priced_as_a_gather_of_every_chips_partial_sum():
    plan = AllReducePlan.make(2, "line", HIDDEN)
    gathered = 2 * 32 * HIDDEN * 2
    assert seconds(plan) == collective_seconds("all_gather", 2, "line", gathered) + LAUNCH
    assert sent(plan) == 32 * HIDDEN * 2


def test_ttnns_all_reduce_is_never_cheaper_than_its_two_operations():
    """It launches a conversion of the width-sharded residual, a reduce-scatter and an all-gather."""
    for op, chips, topology in ROWS:
        if op == "all_reduce":
            plan = AllReducePlan(chips, topology, HIDDEN, TWO_OPS, "bfloat16")
            size = plan.partial_sum_bytes
            assert seconds(plan) < collective_seconds(op, chips, topology, size) + 3 * LAUNCH


def test_columns_that_do_not_divide_into_tiles_are_not_scattered():
    assert AllReducePlan.make(8, "ring", 896).method == ASYNC
    assert seconds(AllReducePlan(8, "ring", 896, ASYNC, "bfloat16")) > 0


def test_a_launch_costs_what_is_fitted():
    assert calibrate().rates.launch == pytest.approx(LAUNCH, rel=0.02)
