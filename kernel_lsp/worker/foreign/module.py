"""Load a foreign kernel, whose host code runs here: a torch extension, or a Python file with `ModelNew`.

This process belongs to the candidate: nothing that it reports is trusted. It holds no reference values, and gets inputs
only when they are needed. The engine judges copies of the outputs, and has a clock of its own.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from ..capture.load import LoadedFile, build_object, load_file
from ..failure import TargetFailure, raised_by_user, short_message
from ..files import device_of

MODEL_NEW = "ModelNew"
Tensors = Mapping[str, torch.Tensor]
Call = Callable[[Tensors], Any]
MODULE_NAME = "kernel_lsp_extension"
OWN_CALLS: list[str] = []
"""Names of the called functions of built extensions, one per completed call: an empty list means that PyTorch alone
computed."""


@dataclass
class Foreign:
    """The loaded kernel. `forward` and `backward` take the task's tensors by name; backward also the gradients."""

    device: torch.device
    forward: Any = None
    backward: Any = None
    defined: tuple[str, ...] = ()
    """Names of an extension's functions."""


LOADED: dict[str, Foreign] = {}


def open_foreign(request: dict[str, Any]) -> dict[str, Any]:
    """Open a kernel: ``{"kind": "extension" | "model_new", "device", "arguments", "gradients", "source", "library",
    "module_name", "file", "builds"}``.

    `arguments` are the task's, in order: ``{"name", "role", "qualified_name"}`` or ``{"name", "value"}``. `gradients`
    names the gradients of results that a backward takes first. `source` is the task's. `builds` are the extensions that
    were built for `load_inline`, by key. Answers ``{"status": "opened", "functions": [...], "defined": [...]}``, the
    latter an extension's functions, ``{"status": "needs_build", "key", "name", "text", "suffix"}``, or ``{"status":
    "refused", "message"}``.
    """
    device = device_of(request["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        opened = _extension(request, device) if request["kind"] == "extension" else _model_new(request, device)
    except NeedsBuild as needed:
        return {"status": "needs_build", **needed.as_json()}
    except TargetFailure as failure:
        cause = failure.__context__
        if isinstance(cause, NeedsBuild):
            return {"status": "needs_build", **cause.as_json()}
        return {"status": "refused", "message": failure.message, "line": failure.line}
    except (ImportError, RuntimeError, TypeError) as error:
        return {"status": "refused", "message": f"it cannot be loaded: {short_message(error)}"}
    LOADED["foreign"] = opened
    found = [name for name in ("forward", "backward") if getattr(opened, name) is not None]
    return {"status": "opened", "functions": found, "defined": list(opened.defined)}


def _extension(request: dict[str, Any], device: torch.device) -> Foreign:
    module = import_library(request["module_name"], request["library"])
    arguments, gradients = request["arguments"], request["gradients"]
    forward, backward = _forward_of(module, request["source"]["symbol"]), getattr(module, "backward", None)
    if request["source"]["kind"] == "robust_kbench":
        return _in_task_folder(request, device, forward, backward)
    return Foreign(
        device,
        None if forward is None else lambda tensors: forward(*_in_order(arguments, tensors)),
        None
        if backward is None
        else lambda tensors: backward(*(tensors[name] for name in gradients), *_in_order(arguments, tensors)),
        defined=tuple(_functions(module)),
    )


def _forward_of(module: ModuleType, symbol: str) -> Any:
    """Return the function that computes the task: `forward`, the one of the task's name, or the only one."""
    functions = _functions(module)
    name = next((each for each in ("forward", symbol) if each in functions), "")
    others = [each for each in functions if each != "backward"]
    return getattr(module, name or (others[0] if len(others) == 1 else ""), None)


def _functions(module: ModuleType) -> list[str]:
    return sorted(name for name, value in vars(module).items() if callable(value) and not name.startswith("_"))


def import_library(name: str, path: str) -> ModuleType:
    """Import a compiled extension as a module. Raises ImportError."""
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if spec is None:
        raise ImportError(f"{path} is no extension")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _in_order(arguments: Sequence[Mapping[str, Any]], tensors: Tensors) -> list[Any]:
    """Return the task's arguments in the order of a plain function."""
    return [argument["value"] if "value" in argument else tensors[argument["name"]] for argument in arguments]


def _in_task_folder(request: dict[str, Any], device: torch.device, forward: Any, backward: Any) -> Foreign:
    """Call the kernel through the `Model` of a robust-kbench folder, as its own evaluation does."""
    calls: dict[str, Call | None] = {"forward": None, "backward": None}
    if forward is not None:
        _, model = _task_model(request["source"], request["source"]["file"], device)
        calls["forward"] = lambda tensors: _call_model(model, request["arguments"], tensors, fn=forward)
    beside = os.path.join(os.path.dirname(request["source"]["file"]), "func_backward.py")
    if backward is not None and os.path.isfile(beside):
        loaded, model_of_backward = _task_model(request["source"], beside, device)
        loaded.module.AutogradFunction.backward_fn = staticmethod(backward)
        calls["backward"] = lambda tensors: _gradients(model_of_backward, request, tensors)
    return Foreign(device, calls["forward"], calls["backward"])


def _task_model(source: dict[str, Any], file: str, device: torch.device) -> tuple[LoadedFile, torch.nn.Module]:
    from ..capture.robust_kbench import build, read_settings

    loaded = load_file(file)
    callee, _ = build(loaded, {**source, "file": file}, read_settings(source["file"])[0])
    return loaded, callee.owner.to(device)


def _call_model(model: torch.nn.Module, arguments: Sequence[Any], tensors: Tensors, **keywords: Any) -> Any:
    set_state(model, arguments, tensors)
    given = [a for a in arguments if "value" not in a and a["role"] == "input"]
    return model(*(tensors[argument["name"]] for argument in given), **keywords)


def _gradients(model: torch.nn.Module, request: dict[str, Any], tensors: Tensors) -> Any:
    """Differentiate through the folder's own autograd function, whose backward is the kernel."""
    wanted = {name: tensors[name].detach().requires_grad_() for name in request["wanted"]}
    with torch.enable_grad():
        results = _call_model(model, request["arguments"], {**tensors, **wanted})
    flat = list(results) if isinstance(results, (tuple, list)) else [results]
    state = dict(model.named_parameters())
    names = {a["name"]: a.get("qualified_name") for a in request["arguments"] if "value" not in a}
    leaves = [state.get(names[name] or "", wanted[name]) for name in request["wanted"]]
    return torch.autograd.grad(flat, leaves, [tensors[name] for name in request["gradients"]])


def set_state(model: torch.nn.Module, arguments: Sequence[Mapping[str, Any]], tensors: Tensors) -> None:
    """Copy the case's parameters and buffers into the module: by name, else by position where all shapes agree.

    Raises TargetFailure when the module has other parameters than the task's model.
    """
    given = [a for a in arguments if "value" not in a and a["role"] != "input"]
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    names = [argument["qualified_name"] for argument in given]
    if not set(names) <= state.keys():
        shapes = [tuple(tensors[argument["name"]].shape) for argument in given]
        if [tuple(tensor.shape) for tensor in state.values()] != shapes:
            missing = sorted(set(names) - state.keys())
            raise TargetFailure(f"{type(model).__name__} has no `{missing[0]}`: name its parameters as `Model`'s are")
        names = list(state)
    for name, argument in zip(names, given):
        state[name].data = tensors[argument["name"]]


def _model_new(request: dict[str, Any], device: torch.device) -> Foreign:
    with inline_builds(request["builds"], import_library):
        loaded = _import_foreign(request["file"])
        source = {**request["source"], "line": 1}
        if not hasattr(loaded.module, "get_init_inputs") and source.get("has_get_init_inputs"):
            of_task: Any = _import_foreign(source["file"]).module
            loaded.module.__dict__["get_init_inputs"] = of_task.get_init_inputs
        source["has_get_init_inputs"] = hasattr(loaded.module, "get_init_inputs")
        model = build_object(loaded, source, MODEL_NEW)
    if not isinstance(model, torch.nn.Module):
        raise TargetFailure(f"{MODEL_NEW} is no nn.Module")
    model = model.to(device).eval() if not source.get("training") else model.to(device)
    arguments = request["arguments"]

    def forward(tensors: Tensors) -> Any:
        set_state(model, arguments, tensors)
        given = [a for a in arguments if "value" in a or a["role"] == "input"]
        return model(*_in_order(given, tensors))

    return Foreign(device, forward)


def _import_foreign(file: str) -> LoadedFile:
    """Import a file as a user's file, but with CUDA: it may launch kernels during its import."""
    name = f"_kernel_lsp_foreign_{os.path.basename(file)[:-3]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except NeedsBuild:
        raise
    except BaseException as error:  # any exception of the file, exit included, is an answer about the file
        raise raised_by_user(error, "importing the file", file) from None
    return LoadedFile(file, module)


class NeedsBuild(BaseException):
    """The sources of an extension that a file requests. Not an `Exception`, so that the file's own `except` does not
    catch it."""

    def __init__(self, name: str, text: str, suffix: str) -> None:
        super().__init__(name)
        self.name, self.text, self.suffix = name, text, suffix

    @property
    def key(self) -> str:
        """Return the hash of the content."""
        return hashlib.sha256(f"{self.suffix}\0{self.text}".encode()).hexdigest()

    def as_json(self) -> dict[str, Any]:
        """Return the engine's description of the sources."""
        return {"key": self.key, "name": self.name, "text": self.text, "suffix": self.suffix}


@contextlib.contextmanager
def inline_builds(builds: Mapping[str, str], import_library: Callable[[str, str], Any]) -> Iterator[None]:
    """Replace the two functions by a lookup in `builds`, key -> path; `import_library(name, path)` loads one."""
    from torch.utils import cpp_extension

    patched: Any = cpp_extension

    def found(name: str, text: str, suffix: str) -> Any:
        needed = NeedsBuild(name, text, suffix)
        if needed.key not in builds:
            raise needed
        return _counted(import_library(MODULE_NAME, builds[needed.key]))

    def load_inline(
        name: str,
        cpp_sources: str | Sequence[str] = "",
        cuda_sources: str | Sequence[str] | None = None,
        functions: Any = None,
        **_: Any,
    ) -> Any:
        text, suffix = inline_text(_listed(cpp_sources), _listed(cuda_sources), functions)
        return found(name, text, suffix)

    def load(name: str, sources: str | Sequence[str], **_: Any) -> Any:
        texts = []
        for path in _listed(sources):
            with open(path, encoding="utf-8") as file:
                texts.append(file.read())
        is_cuda = any(path.endswith(".cu") for path in _listed(sources))
        return found(name, "\n".join(texts), ".cu" if is_cuda else ".cpp")

    kept = (patched.load_inline, patched.load)
    patched.load_inline, patched.load = load_inline, load
    try:
        yield
    finally:
        patched.load_inline, patched.load = kept


def inline_text(cpp: Sequence[str], cuda: Sequence[str], functions: Any) -> tuple[str, str]:
    """Return the one file that torch would make of the sources, and its suffix: headers, both texts, bindings."""
    listed = {functions: functions} if isinstance(functions, str) else functions or {}
    listed = listed if isinstance(listed, dict) else {name: name for name in listed}
    headers = ["#include <torch/extension.h>"]
    headers += ["#include <cuda.h>", "#include <cuda_runtime.h>"] if cuda else []
    bindings = [f'm.def("{name}", &{name}, "{str(doc)[:60]}");' for name, doc in listed.items()]
    module = ["PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {", *bindings, "}"] if bindings else []
    return "\n".join([*headers, *cpp, *cuda, *module]) + "\n", ".cu" if cuda else ".cpp"


def _counted(module: Any) -> Any:
    """Wrap the module's functions so that calls are counted."""
    for name, value in list(vars(module).items()):
        if callable(value) and not isinstance(value, type) and not name.startswith("__"):
            setattr(module, name, _counting(name, value))
    return module


def _counting(name: str, function: Any) -> Any:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        found = function(*arguments, **keywords)
        OWN_CALLS.append(name)
        return found

    return call


def _listed(sources: str | Sequence[str] | None) -> list[str]:
    if sources is None:
        return []
    return [sources] if isinstance(sources, str) else [str(source) for source in sources]
