"""Run one direction of a captured target on a case: in fp64, and as the user wrote it, at the declared dtypes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..capture.backward import GRADIENT
from ..capture.captured import Captured
from ..capture.program import user_outputs
from ..capture.validation import call_original
from ..cases.case_values import Case, differentiate, leaves_of, placeholder_values, widened
from ..cases.families import GRADIENT_FAMILIES, GRADIENT_SCALES, NARROW_SCALE, draw
from ..failure import TargetFailure, raised_by_user, short_message
from .fp64_reference import run_exact

CPU = torch.device("cpu")


@dataclass(frozen=True)
class ReferenceRun:
    """One direction of a captured target, on inputs of one family."""

    captured: Captured
    family: str
    seed: int
    is_backward: bool

    def expected(self, case: Case, original: Case) -> list[torch.Tensor]:
        """Return the fp64 results: outputs, or the gradients of the wanted arguments. Fills in the original's
        gradients."""
        values = placeholder_values(self.captured, case)
        try:
            if not self.is_backward:
                with torch.no_grad():
                    return run_exact(self.captured.program, values)
            leaves = leaves_of(self.captured, [widened(value) for value in values])
            outputs = run_exact(self.captured.program, leaves)
            original.gradients = self._gradients(outputs)
            gradients = [gradient.to(outputs[0].device).double() for gradient in original.gradients]
            return differentiate(self.captured, outputs, leaves, gradients)
        except Exception as error:  # any operator may refuse these sizes or values, with any exception
            raise _refused(self.captured, error) from None

    def native(self, case: Case, expected: list[torch.Tensor]) -> tuple[list[torch.Tensor], str]:
        """Run the user's own code at the declared dtypes. Returns the rounded reference and a note where torch has no
        kernel for it."""
        captured = self.captured
        try:
            if not self.is_backward:
                with torch.no_grad():
                    return call_original(captured, case.inputs, case.state), ""
            leaves = leaves_of(captured, placeholder_values(captured, case))
            inputs, state = list(case.inputs), dict(case.state)
            for placeholder, leaf in zip(captured.program.placeholders, leaves):
                if placeholder.role == "input":
                    inputs[placeholder.index] = leaf
                else:
                    state[placeholder.node] = leaf
            outputs = call_original(captured, inputs, state)
            return differentiate(captured, outputs, leaves, case.gradients), ""
        except (RuntimeError, NotImplementedError) as error:
            if "not implemented for" not in str(error):
                raise _refused(captured, error) from None
            dtypes = result_dtypes(captured, self.is_backward)
            note = f"PyTorch cannot run this on a CPU ({short_message(error)}): its result is the rounded reference"
            return [result.to(dtype) for result, dtype in zip(expected, dtypes)], note
        except Exception as error:  # as in `expected`
            raise _refused(captured, error) from None

    def _gradients(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return random gradients of the floating outputs, at their declared dtypes, on the CPU."""
        family, exponent = GRADIENT_FAMILIES.get(self.family, "normal"), GRADIENT_SCALES.get(self.family, 0)
        captured, dtypes = self.captured, _declared_outputs(self.captured)
        assert captured.backward is not None, "gradients are for a backward pass"
        found = []
        with CPU:
            for p in captured.backward.outputs:
                name, shape = GRADIENT + captured.output_names[p], tuple(outputs[p].shape)
                scale = 2.0 ** (exponent / NARROW_SCALE if dtypes[p] == torch.float16 else exponent)
                found.append(draw(family, shape, dtypes[p], self.seed, name) * scale)
        return found


def result_dtypes(captured: Captured, is_backward: bool) -> list[torch.dtype]:
    """Return the declared dtypes of the outputs, or of the gradients that exist."""
    if not is_backward:
        return _declared_outputs(captured)
    assert captured.backward is not None
    pairs = zip(captured.backward.of, captured.backward.results)
    return [captured.program.fake_inputs[position].dtype for position, result in pairs if result is not None]


def _refused(captured: Captured, error: BaseException) -> TargetFailure:
    source = captured.source
    return raised_by_user(
        error,
        "running the target on test inputs",
        source["file"],
        line=source["line"],
        next_step="capture with sizes at which the target runs",
    )


def _declared_outputs(captured: Captured) -> list[torch.dtype]:
    return [node.meta["val"].dtype for node in user_outputs(captured.program.functional)]
