"""Large tensors in parts and shorter forms of sums give what the whole and the longer form give, to the bit."""

import pytest
import torch

from golden_mesh.arithmetic import bfloat16_dest, engine, parts
from golden_mesh.arithmetic.block_floats import BlockFloats
from golden_mesh.arithmetic.kernel import Kernel
from golden_mesh.arithmetic.product import multiply, product, sums_of_columns, sums_of_rows

SHAPES = [
    ((70, 90), (70, 90)), ((3, 1, 50, 40), (40,)), ((3, 2, 50, 1), (2, 1, 40)), ((1, 1, 2, 6000), ()),
    ((2, 4000, 1), (1, 1)),
]  # fmt: skip
KERNELS = [Kernel(4, True), Kernel(4, False), Kernel(2, False)]


def draw(*shape: int) -> torch.Tensor:
    """bfloat16 of any size and sign."""
    powers = torch.randint(-12, 12, shape).float()
    return (torch.randn(shape) * torch.exp2(powers)).bfloat16()


@pytest.fixture(params=SHAPES, ids=str)
def operands(request):
    torch.manual_seed(0)
    return [draw(*shape) for shape in request.param]


def in_small_parts(monkeypatch, call):
    """Return the call's result as a whole, and in parts."""
    monkeypatch.setattr(parts, "WHOLE", 1 << 30)
    whole = call()
    monkeypatch.setattr(parts, "WHOLE", 200)
    monkeypatch.setattr(parts, "PART", 100)
    return whole, call()


@pytest.mark.parametrize("function", [engine.add, engine.subtract, torch.maximum])
def test_elementwise(monkeypatch, operands, function):
    whole, in_parts = in_small_parts(monkeypatch, lambda: parts.in_parts(function, *operands))
    assert torch.equal(whole, in_parts)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_products_and_sums(monkeypatch, operands, kernel):
    x = operands[0]
    for call in (
        lambda: multiply(*operands, kernel),
        lambda: sums_of_rows(x, kernel, 0.3),
        lambda: sums_of_columns(x, kernel, 0.3),
    ):
        assert torch.equal(*in_small_parts(monkeypatch, call))


@pytest.mark.parametrize("rows", [1, 9, 17, 32])
@pytest.mark.parametrize("shape", [(512, 2112), (256, 4128), (515, 2081)], ids=str)
def test_strips_of_a_weight_on_several_threads_give_the_integers_products(shape, rows):
    torch.manual_seed(0)
    a, b = torch.randint(-15, 16, (rows, shape[0])), torch.randint(-127, 128, shape)
    a[rows // 2 :] = a[-1:].clone()  # neighbors that are equal
    weight = BlockFloats.pack(b.bfloat16())
    assert isinstance(weight, BlockFloats) == (shape[1] % 32 == 0)
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            results = [product(a.bfloat16(), each, Kernel(4, True)) for each in (weight, b.bfloat16(), b.float())]
        finally:
            torch.set_num_threads(before)
        assert all(torch.equal(result, (a @ b).float()) for result in results)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_equal_rows_of_nan_among_others_are_each_as_alone(kernel):
    torch.manual_seed(0)
    a, b = draw(2, 12, 64), draw(2, 64, 40)
    a[:, 3:8], a[:, 8, 5], a[1, 9:11, 7] = torch.nan, torch.inf, -torch.inf
    a[1, 10] = a[1, 9]
    alone = [product(a[:, row : row + 1], b, kernel) for row in range(a.shape[1])]
    assert torch.equal(product(a, b, kernel), torch.cat(alone, 1))


def test_a_bfloat16_sum_is_that_of_its_longer_form(monkeypatch):
    """Of any two bfloat16: large, small, infinite, none, zeros with a sign."""
    torch.manual_seed(0)
    a, b = (torch.randint(-(1 << 15), 1 << 15, (1 << 16,), dtype=torch.int16).view(torch.bfloat16) for _ in range(2))
    tame = a.float().abs().clamp(1e-30, 1e30).copysign(a.float()).nan_to_num(1.0).bfloat16()
    zeros = torch.zeros(1 << 14).bfloat16()
    near = (tame.float() * torch.exp2(torch.randint(-12, 12, tame.shape))).bfloat16()
    for x, y in ((a, b), (tame, near), (near, -tame), (-zeros, -zeros), (zeros, -zeros), (draw(99, 99), draw(99))):
        for function in (engine.add_in_float32_dest, engine.subtract_in_float32_dest):
            short = function(x, y)
            with monkeypatch.context() as patch:
                patch.setattr(engine, "_NEGATIVE_POWER", torch.inf)
                long = function(x, y)
            assert torch.equal(short.isnan(), long.isnan())
            assert torch.equal(*(each.nan_to_num().view(torch.int32) for each in (short, long)))


@pytest.mark.parametrize("few", [0, 1 << 40])
def test_a_sum_of_rows_in_a_bfloat16_dest_is_that_of_all_instructions(monkeypatch, few):
    """Instructions of zeros are left out if they change nothing. Those of large terms that cancel cut a small dest."""
    torch.manual_seed(0)
    rows, kernel, sums = draw(8, 512), Kernel(4, False), bfloat16_dest._sums
    cancelling = torch.zeros(8, 32).bfloat16()
    cancelling[:, 0], cancelling[:, 1], cancelling[:, 16:] = 1000, -1000, torch.rand(8, 16) / 100
    monkeypatch.setattr(bfloat16_dest, "FEW_PRODUCTS", few)
    short = [sums_of_rows(x, kernel) for x in (rows, rows.abs(), cancelling)]
    monkeypatch.setattr(bfloat16_dest, "_sums", lambda *args: (*sums(*args)[:2], True))
    assert all(map(torch.equal, short, [sums_of_rows(x, kernel) for x in (rows, rows.abs(), cancelling)]))


@pytest.mark.parametrize("kernel", [Kernel(3, False), Kernel(4, False), Kernel(4, True)])
def test_a_product_takes_the_bits_of_a_float32_that_a_register_holds(kernel):
    rows, weight = torch.randn(33, 96), draw(96, 40)
    assert torch.equal(product(rows, weight, kernel), product(engine.keep(rows, engine.SRC_B), weight, kernel))
