"""Replace `load_inline` and `load` of torch's `cpp_extension` for a file under check: the engine builds.

A call with unbuilt sources ends the import with `NeedsBuild`. At the next import the library exists.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

MODULE_NAME = "kernel_lsp_extension"
OWN_CALLS: list[str] = []
"""Names of the called functions of built extensions, one per completed call: an empty list means that PyTorch alone
computed."""


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
