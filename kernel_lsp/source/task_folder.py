"""Resolve a task folder in robust-kbench's layout by its text: no user code is executed."""

from __future__ import annotations

import json
import os
from pathlib import Path

from kernel_lsp.core.task import TargetSource
from kernel_lsp.errors import TargetError
from kernel_lsp.source.inference.pragma_proposal import Signature, needed, propose
from kernel_lsp.source.pragma import Pragma
from kernel_lsp.source.python_file import FunctionNode, parameters_of, read_python_file

TASK_FILE = "func_forward.py"
TASK_CONFIGURATION = "config_forward.json"
TASK_FUNCTION = "forward_fn"


def read_task_folder(target: str, path: Path, symbol: str) -> TargetSource:
    """Read the declaration of a folder in robust-kbench's layout. Raises TargetError."""
    file, folder = path / TASK_FILE, target.partition("::")[0]
    missing = [name for name in (TASK_FILE, TASK_CONFIGURATION) if not (path / name).is_file()]
    is_number = symbol.isascii() and symbol.isdigit() and int(symbol) > 0
    if missing or (symbol and not is_number):
        message = (
            f"the folder is no robust-kbench task: it has no {missing[0]}" if missing else "a folder has no symbol"
        )
        next_step = f"name a folder with {TASK_FILE} and {TASK_CONFIGURATION}, FOLDER::2 for its second configuration"
        raise TargetError(message, file=folder, next_step=next_step)
    name = os.path.join(folder, TASK_FILE)
    source = read_python_file(file, name)
    _check_configuration(path / TASK_CONFIGURATION, os.path.join(folder, TASK_CONFIGURATION))
    for required in (TASK_FUNCTION, "get_inputs"):
        if not isinstance(source.definition(required), FunctionNode):
            message = f"the task defines no function '{required}'"
            raise TargetError(message, file=name, line=1, next_step=f"define {required} as robust-kbench tasks do")
    function = source.definition(TASK_FUNCTION)
    assert isinstance(function, FunctionNode)
    parameters = parameters_of(function, of_class=False)
    return TargetSource(
        target=target,
        file=str(file),
        symbol="",
        kind="robust_kbench",
        line=function.lineno,
        parameters=tuple(parameter.name for parameter in parameters),
        inputs=None,
        has_get_inputs=True,
        has_get_init_inputs=source.definition("get_init_inputs") is not None,
        configuration=int(symbol) - 1 if symbol else 0,
        example_pragma=propose(Signature(source, function, None, Pragma())).pragma(needed(parameters)),
    )


def _check_configuration(path: Path, file: str) -> None:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        message = f"the file cannot be read: {error.strerror or error}"
        raise TargetError(message, file=file, next_step="check its permissions") from None
    except json.JSONDecodeError as error:
        message = f"the file is not JSON: {error.msg}"
        raise TargetError(message, file=file, line=error.lineno, next_step="correct the line") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise TargetError(f"the file is not JSON: {error}", file=file, line=1, next_step="write JSON") from None
    if not isinstance(content, dict):
        message = "the file holds no JSON object with single_* and multi_* lists"
        raise TargetError(message, file=file, line=1, next_step="write it as robust-kbench tasks do")
