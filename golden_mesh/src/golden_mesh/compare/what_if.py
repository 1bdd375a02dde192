"""The compute kernels of an operation's golden: what they are, and other settings of them (golden-mesh compare)."""

import contextlib
from dataclasses import replace
from typing import Callable, Iterator
from unittest.mock import patch

import ttnn

from golden_mesh.arithmetic import flash
from golden_mesh.arithmetic.kernel import PHASES, Kernel
from golden_mesh.mesh.arguments import substitute
from golden_mesh.mesh.memory import Slot
from golden_mesh.mesh.steps import Step


class WhatIf:
    """Another setting of the operations, such as fidelity=HiFi4, dest=float32 or dtype=bfloat16 (of their results)."""

    def __init__(self, text: str):
        self.text = text
        self.name, _, self.value = text.partition("=")

    def kernel(self, kernel: Kernel) -> Kernel:
        if self.name == "fidelity":
            return replace(kernel, phases=PHASES[self.value])
        return replace(kernel, wide=self.value == "float32") if self.name == "dest" else kernel

    def step(self, step: Step) -> Step:
        """The step with results of another dtype."""
        if self.name != "dtype":
            return step
        targets = {*step.targets, *step.outputs}

        def other(slot: Slot) -> Slot:
            changes = slot in targets and "INT" not in slot.dtype.name
            return slot._replace(dtype=self.dtype) if changes else slot

        slots = (step.arguments, step.inputs, step.outputs)
        arguments, inputs, outputs = (substitute(each, Slot, other) for each in slots)
        return replace(step, arguments=arguments, inputs=inputs, outputs=outputs)

    @property
    def dtype(self) -> ttnn.DataType:
        return getattr(ttnn, self.value)


@contextlib.contextmanager
def kernels_of(note: Callable, change: Callable = lambda kernel: kernel) -> Iterator[None]:
    """Call `note` with each kernel that a golden makes inside, and again with another exp. `change` replaces it."""
    real, weights = Kernel.of, flash.weights

    def of(*config, **defaults) -> Kernel:
        kernel = change(real(*config, **defaults))
        note(kernel)
        return kernel

    def noting_exp(scores, largest, scale, kernel, approximate, *limit):
        note(replace(kernel, approximate=approximate))
        return weights(scores, largest, scale, kernel, approximate, *limit)

    with patch.object(Kernel, "of", staticmethod(of)), patch.object(flash, "weights", noting_exp):
        yield
