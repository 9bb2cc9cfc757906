"""The command `capture`: convert a target's source into a task, and keep the state that `make_cases` needs. Before it,
`prepare_capture` imports what both need."""

from __future__ import annotations

import contextlib
import linecache
from typing import Any

from ..hide_cuda import take_asked
from .call import capture_call, refuse_empty
from .captured import WARM, Captured
from .inputs import inputs_of
from .load import LoadedFile, load_file, resolve
from .numbers import attribute_place
from .program import decompositions


def prepare_capture(_: dict[str, Any]) -> dict[str, Any]:
    """Import everything that a first capture and its first case need, and return ``{}``. The client sends it while it
    still imports its own modules."""
    import torch._dynamo  # by `torch.export`, at its first use

    from ..cases import cases  # noqa: F401 (to have it imported)

    with contextlib.suppress(ImportError):  # a private name of torch's: without it torch imports the module on demand
        import torch.export._trace  # noqa: F401 (to have it imported)
    return {}


def capture(request: dict[str, Any]) -> dict[str, Any]:
    """Capture: ``{"source": TargetSource, "with_backward": bool, "configuration": int}`` -> ``{"task": Task}``. A
    configuration other than the first keeps the first one's capture. Raises Failure."""
    source, configuration = request["source"], int(request.get("configuration", 0))
    linecache.checkcache()
    decompositions.cache_clear()
    take_asked()
    if not configuration:
        WARM.captured, WARM.others = None, {}
    loaded = load_file(source["file"])
    captured = _capture(loaded, source, bool(request.get("with_backward")), configuration)
    if take_asked():
        captured.notes.append("the code asks for a GPU and there is none here: captured on the CPU")
    captured.configuration = configuration
    if configuration:
        WARM.others[configuration] = captured
    else:
        WARM.captured = captured
    from .task import task_of

    return {"task": task_of(captured)}


def _capture(loaded: LoadedFile, source: dict[str, Any], with_backward: bool, configuration: int) -> Captured:
    if source["kind"] == "robust_kbench" or source.get("configurations"):
        from .configurations import capture_configuration

        return capture_configuration(loaded, source, with_backward, configuration)
    callee = resolve(loaded, source)
    for given in source.get("attributes") or ():
        module, name = attribute_place(callee.owner, given["path"])
        setattr(module, name, given["value"])
    inputs = inputs_of(loaded, source, callee.call)
    refuse_empty(inputs, source)
    return capture_call(source, callee, inputs, with_backward)
