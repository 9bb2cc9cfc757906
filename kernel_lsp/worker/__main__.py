"""Entry point, started by path: ``PYTHON kernel_lsp/worker/__main__.py [PROGRAM ARGUMENT...]``."""

from __future__ import annotations

import importlib.util
import os
import sys

PACKAGE = "_kernel_lsp_worker"
PROGRAMS = {"fork_server": "fork_server", "profile_launches": "gpu.launches"}
"""Modules that run once and end, by their ``main(arguments)``. Without one, requests are served."""


def main() -> None:
    """Load this folder as the package `PACKAGE`, and serve until stdin ends or run the named program."""
    folder = os.path.dirname(os.path.abspath(__file__))
    # Python put this folder first on the path, where our file names would shadow the user's modules.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != folder]
    spec = importlib.util.spec_from_file_location(
        PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    if spec is None or spec.loader is None:
        raise SystemExit(f"cannot load the worker from {folder}")
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    if len(sys.argv) > 1 and sys.argv[1] in PROGRAMS:
        raise SystemExit(importlib.import_module(f"{PACKAGE}.{PROGRAMS[sys.argv[1]]}").main(sys.argv[2:]))
    importlib.import_module(f"{PACKAGE}.protocol").serve()


if __name__ == "__main__":
    main()
