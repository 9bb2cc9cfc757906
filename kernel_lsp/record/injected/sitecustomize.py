"""Start the recorder in a Python that the recorded command starts, then run the `sitecustomize` that this one hides.

Python 3.9 or newer; standard library only.
"""

import importlib.machinery
import importlib.util
import os
import sys
import types

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _load(name: str, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


def _start() -> None:
    for part in ("literals", "calls", "spelling", "rests", "imports", "main", "recorder"):
        name = f"_kernel_lsp_{part}"
        spec = importlib.util.spec_from_file_location(name, os.path.join(_FOLDER, name + ".py"))
        assert spec is not None
        module = _load(name, spec)
    module.start()


sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _FOLDER]
try:
    _start()
finally:
    _own = sys.modules.pop("sitecustomize", None)
    _hidden = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if _hidden is not None and _hidden.loader is not None:
        _load("sitecustomize", _hidden)
    elif _own is not None:
        sys.modules["sitecustomize"] = _own
