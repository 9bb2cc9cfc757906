"""The command `try_inputs`: find the first of several descriptions of a target's inputs that its code accepts.

The target runs on fake tensors, which have a shape and no data, so trying takes neither memory nor time.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from ..capture.attempt import is_data_dependent
from ..capture.inputs import inputs_of
from ..capture.load import Callee, load_file, resolve
from ..failure import TargetFailure, raised_by_user
from ..hide_cuda import without_cuda


def try_inputs(request: dict[str, Any]) -> dict[str, Any]:
    """Try: ``{"sources": [TargetSource, ...]}`` -> ``{"accepted": index}``. Raises the first one's failure where none
    is accepted."""
    loaded = load_file(request["sources"][0]["file"])
    callees: dict[str, Callee] = {}
    first: TargetFailure | None = None
    for index, source in enumerate(request["sources"]):
        key = json.dumps(source.get("init_arguments"))
        try:
            if key not in callees:
                callees[key] = resolve(loaded, source)
            _run(callees[key], source, inputs_of(loaded, source, callees[key].call))
            return {"accepted": index}
        except TargetFailure as failure:
            first = first or failure
    assert first is not None
    raise first


def _run(callee: Callee, source: dict[str, Any], inputs: Any) -> None:
    """Raise TargetFailure where the code rejects the inputs. A question for values ends the trial: shapes were
    accepted up to there."""
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad(), without_cuda():
            tensors = [torch.empty(leaf.shape, dtype=leaf.dtype) for leaf in inputs.tensors]
            positional, keywords = inputs.rebuild(tensors)
            callee.call(*positional, **keywords)
    except BaseException as error:  # the user's code may raise anything, exit included
        if is_data_dependent(error):
            return
        raise raised_by_user(
            error,
            "running the target on fake tensors",
            source["file"],
            line=source["line"],
            next_step="write the shapes that this line needs, or record them from a run",
        ) from None
