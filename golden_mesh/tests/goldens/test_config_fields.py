"""Every field of a config object is read by the op's golden, refused, or in mesh/config_fields.py."""

import operator
import re
import types

import pytest
import torch
import ttnn
from test_signatures import function_of

from golden_mesh.errors import GoldenError
from golden_mesh.mesh.config_fields import PRECISION, REFUSED, WITHOUT_EFFECT
from golden_mesh.registry import GOLDENS

OF_THE_CONV = {"activation", "padding_mode", "weights_dtype"}
ELSEWHERE = {  # fields that another op or argument of the call decides
    "ttnn.prepare_conv_weights": OF_THE_CONV,
    "ttnn.prepare_conv_bias": OF_THE_CONV,
    "ttnn.prepare_conv_transpose2d_weights": OF_THE_CONV,
    "ttnn.prepare_conv_transpose2d_bias": OF_THE_CONV,
    "ttnn.experimental.conv3d": {"dilation", "weights_dtype"},
}
PLACES = {"MemoryConfig", "MeshMapperConfig"}  # the real tensors have these


def names_in(function) -> set[str]:
    """Attributes and strings in the code of a function and of those that it may call."""
    found, seen, left = set(), set(), [function]
    while left:
        function = left.pop()
        function = getattr(function, "__func__", function)
        if not isinstance(function, types.FunctionType) or function in seen:
            continue
        if not function.__module__.startswith("golden_mesh"):
            continue
        seen.add(function)
        codes = [function.__code__]
        for code in codes:
            codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        names = {name for code in codes for name in code.co_names}
        found |= names | {c for code in codes for c in code.co_consts if isinstance(c, str)}
        used = [function.__globals__.get(name) for name in names]
        owners = [u for u in used if isinstance(u, (types.ModuleType, type))]
        left += used + [vars(owner).get(name) for owner in owners for name in names]
        left += [cell.cell_contents for cell in function.__closure__ or ()]
    return found


def fields_of(op: str) -> dict[str, str]:
    """The fields of the configs that the op takes, with the config's class."""
    try:
        function = function_of(op)
    except AttributeError:  # newer than this ttnn
        return {}
    call = getattr(type(function), "__call__", None)
    declared = getattr(function, "__nb_signature__", getattr(call, "__nb_signature__", ()))
    paths = {p for text, *_ in declared for p in re.findall(r"ttnn\._ttnn\.([\w.]+Config)\b", text)}
    classes = [operator.attrgetter(path)(ttnn._ttnn) for path in paths]
    return {
        field: found.__name__
        for found in classes
        if found.__name__ not in PLACES
        for field, value in vars(found).items()
        if isinstance(value, property)
    }


WITH_CONFIGS = [op for op in sorted(GOLDENS) if fields_of(op)]


@pytest.mark.parametrize("op", WITH_CONFIGS)
def test_every_field_is_read_refused_or_listed(op):
    read, refused = names_in(GOLDENS[op].function), set(REFUSED.get(op, ()))
    known = WITHOUT_EFFECT | PRECISION | ELSEWHERE.get(op, set())
    assert set(fields_of(op)) - read - refused - known == set()
    assert refused <= set(fields_of(op)), "refused, but no field of its configs"
    assert not refused & read, "refused, but read"


def test_the_walk_sees_the_configs_and_what_goldens_read():
    assert len(WITH_CONFIGS) > 60 and set(REFUSED) <= set(WITH_CONFIGS)
    assert fields_of("ttnn.conv2d")["padding_mode"] == "Conv2dConfig"
    assert "fused_activation" in names_in(GOLDENS["ttnn.matmul"].function)  # through linear
    assert "fused_activation" not in names_in(GOLDENS["ttnn.addmm"].function)


def test_a_refused_field_is_named(chips):
    x = chips.put(torch.ones(1, 1, 32, 32))
    config = ttnn.MatmulMultiCoreReuseMultiCast1DProgramConfig(
        compute_with_storage_grid_size=(1, 1), in0_block_w=1, out_subblock_h=1, out_subblock_w=1,
        per_core_M=1, per_core_N=1, fuse_batch=True, mcast_in0=True,
        fused_activation=ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU),
    )  # fmt: skip
    with pytest.raises(GoldenError, match="ttnn.addmm: .*ProgramConfig.fused_activation="):
        ttnn.addmm(x, x, x, program_config=config)
