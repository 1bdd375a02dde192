"""Calls bind to goldens by the library's own signatures: its names, order and defaults."""

import operator

import pytest
import torch
import ttnn

from golden_mesh.errors import GoldenError
from golden_mesh.registry import EXTRAS, GOLDENS, Golden
from golden_mesh.signatures import REQUIRED, equal, overloads

# Parameters whose own default stands for another one of the library's, and why.
OTHER_DEFAULTS = {"topology": "None is the fabric's, which the library takes in place of a ring on a line"}


def of_op(name: str):
    """The parameters of each overload that the library declares for the op."""
    return overloads(function_of(name))


def function_of(name: str):
    """The library's function of an op, which may be no registered operation (start/install.py)."""
    inside = getattr(ttnn._ttnn.operations.conv, name.removeprefix("ttnn."), None)
    if inside is not None and hasattr(inside, "__wrapped__"):
        return inside.__wrapped__
    return operator.attrgetter(name.removeprefix("ttnn."))(ttnn).function


def arguments(golden: Golden, function, *args, **kwargs):
    form = golden.form(function, args, kwargs)
    return golden.arguments(form, function, form.given(args, kwargs))


@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_a_golden_names_parameters_of_its_ops(name):
    """Each is of one of the ops that share the golden, or what it ignores. Its own defaults are the library's."""
    golden = GOLDENS[name]
    ops = [
        op
        for op, other in GOLDENS.items()
        if other.function.__code__ is golden.function.__code__ or () != other.ignores == golden.ignores
    ]
    declared = [found for op in ops for found in of_op(op)]
    names = {parameter for found in declared for parameter in found}
    own = {n: p.default for n, p in golden.own.items() if n not in EXTRAS}
    pads = [golden.pads] if isinstance(golden.pads, str) else []
    assert {*own, *golden.writes, *golden.ignores, *pads} - names == set()
    assert {*golden.writes, *golden.stacks, *golden.lists, *golden.codes, *pads} <= own.keys()
    for parameter in own.keys() - OTHER_DEFAULTS.keys():
        theirs = [found[parameter].default for found in declared if parameter in found]
        theirs = [default for default in theirs if default is not REQUIRED]
        if own[parameter] is not REQUIRED and theirs:
            assert any(equal(own[parameter], default) for default in theirs), (parameter, theirs)


@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_a_keyword_with_its_default_or_none_is_never_refused(name):
    golden, function = GOLDENS[name], function_of(name)
    for found in of_op(name):
        required = {n: object() for n, p in found.items() if p.default is REQUIRED and n in golden.parameters}
        for parameter, (keyword_only, default) in found.items():
            if keyword_only and default is not REQUIRED and golden.form(function, (), required | {parameter: None}):
                arguments(golden, function, **required, **{parameter: default})
                arguments(golden, function, **required, **{parameter: None})


def declared(*parameters: str):
    """A function of the library with these overloads."""

    class Function:
        __nb_signature__ = [(f"def f(self, {of}) -> ttnn.Tensor", None, (7, [1, 2], None)) for of in parameters]

    return Function()


TWO = declared("x: T, n: int = \\0, *, memory_config: C | None = \\2, steps: list[int] = \\1", "x: T, size: T, n: int")


@pytest.mark.parametrize(
    "args, kwargs, want",
    (
        (("x",), {}, {"x": "x", "n": 7, "size": None}),
        (("x",), {"n": None}, {"x": "x", "n": 7, "size": None}),
        (("x", 3), {"memory_config": "L1", "steps": (1, 2)}, {"x": "x", "n": 3, "size": None}),
        ((), {"n": 3, "x": "x"}, {"x": "x", "n": 3, "size": None}),
        (("x", "s", 3), {}, {"x": "x", "n": 3, "size": "s"}),
        (("x",), {"n": 3, "size": "s"}, {"x": "x", "n": 3, "size": "s"}),
    ),
)
def test_a_golden_gets_what_it_reads(args, kwargs, want):
    golden = Golden("ttnn.two", lambda x, n, size, out: None)
    assert arguments(golden, TWO, *args, **kwargs) == want


def test_others_are_what_a_golden_hands_on():
    rest = Golden("ttnn.two", lambda x, **others: None)
    passed = Golden("ttnn.two", lambda x, **others: None, passes=lambda y, n: None)
    assert arguments(rest, TWO, "x", memory_config="L1") == {"x": "x", "n": 7, "steps": [1, 2]}
    assert arguments(passed, TWO, "x", 3) == {"x": "x", "n": 3}


@pytest.mark.parametrize(
    "args, kwargs", ((("x", "y", "z", "w"), {}), (("x",), {"x": "x"}), ((), {}), (("x",), {"m": 1}))
)
def test_a_call_that_no_overload_takes_has_no_form(args, kwargs):
    assert Golden("ttnn.two", lambda x, n: None).form(TWO, args, kwargs) is None


def test_the_refusal_of_a_keyword_names_the_op_and_the_keyword(chips):
    x = chips.put(torch.zeros(1, 1, 32, 32))
    ttnn.linear(x, x, global_cb=None, prefetcher_pipes=[])
    with pytest.raises(GoldenError, match="ttnn.sum .*correction=False"):
        ttnn.sum(x, correction=False)
