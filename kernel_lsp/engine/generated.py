"""Generate the files of targets that are not files themselves: selected lines and notebook cells.

They are in ``.kernel-lsp/generated``, each with a JSON file that records its origin, so that its runs can be resumed
and shown in the user's own code.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from pydantic import ValidationError

from kernel_lsp.config import FOLDER_NAME, find_workspace
from kernel_lsp.engine.messages import EstimateTarget, ExtractedLines, InferInputs, Optimize, Origin
from kernel_lsp.errors import EnvironmentProblem, TargetError
from kernel_lsp.source.notebook import definitions_of

GENERATED_FOLDER = "generated"


def write_generated(workspace: Path, name: str, text: str, origin: Origin) -> Path:
    """Write the Python file `name`; return its path. Raises EnvironmentProblem when it cannot be written."""
    folder = workspace / FOLDER_NAME / GENERATED_FOLDER
    path = folder / f"{name}.py"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".json").write_text(origin.model_dump_json(indent=1), encoding="utf-8")
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        message = f"a file that the run needs cannot be written: {error.strerror or error}"
        raise EnvironmentProblem(message, file=str(path), next_step="make the folder writable") from None
    return path


def write_cells(request: Optimize | EstimateTarget | InferInputs) -> tuple[Path, str]:
    """Write a file with the definitions of a notebook's cells; return it with the symbol."""
    file, _, symbol = request.target.partition("::")
    notebook = Path(os.path.abspath(request.directory / file))
    name = re.sub(r"\W", "_", f"{notebook.stem}_{symbol}", flags=re.ASCII)
    text = definitions_of(request.cells, str(notebook.parent))
    return write_generated(find_workspace(request.directory), f"cells_{name}", text, Origin(file=notebook)), symbol


def origin_of(path: Path) -> Origin:
    """Return the origin of a generated file; any other file is its own origin."""
    if path.parent.name == GENERATED_FOLDER and path.parent.parent.name == FOLDER_NAME:
        try:
            return Origin.model_validate_json(path.with_suffix(".json").read_text(encoding="utf-8"))
        except (OSError, ValidationError):
            pass  # the record was deleted: show the file itself
    return Origin(file=path)


def file_of_lines(file: Path, lines: ExtractedLines) -> str:
    """Generate a file with the function alone, importing the names that it uses from the original file. Raises
    TargetError when that file cannot be imported by name."""
    root, module = _module_name(file)
    what = f"Lines {lines.first_line} to {lines.last_line} of {file.name}, as a function of what they use."
    parts = [f'"""{what} Written by kernel-lsp."""', "import sys", f"sys.path.insert(0, {str(root)!r})"]
    if lines.global_names:
        parts.append(f"from {module} import {', '.join(lines.global_names)}")
    return "\n".join([*parts, "", "", lines.function, ""])


def _module_name(file: Path) -> tuple[Path, str]:
    """Return the folder to add to Python's path and the file's dotted module name, packages included."""
    folder, parts = file.parent, [file.stem]
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    is_importable = all(part.isidentifier() for part in parts) and parts[0] not in sys.stdlib_module_names
    if not is_importable:
        message = f"lines of a file called '{os.path.basename(file)}' cannot use what the file defines"
        next_step = "rename the file to something that Python can import, or optimize a whole function of it"
        raise TargetError(message, file=str(file), line=1, next_step=next_step)
    return folder, ".".join(parts)
