"""Imports an operator file that was written for a test, under a name of its own."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from kernel_lsp.core.task import Task
from kernel_lsp.export.python.operator import write_operator

from .samples import VERIFICATION, plan_of


def load_operator(task: Task, cu_text: str, directory: Path) -> ModuleType:
    """Write the operator of the task, and import it."""
    _, path, *_ = write_operator(task, cu_text, plan_of(cu_text), directory, verification=VERIFICATION)
    if str(directory) not in sys.path:
        sys.path.append(str(directory))
    spec = importlib.util.spec_from_file_location(task.name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[task.name] = module
    spec.loader.exec_module(module)
    return module
