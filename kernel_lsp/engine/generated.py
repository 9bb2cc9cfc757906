"""Files that a target is written into when it is none by itself: selected lines, cells of a notebook.

They lie in ``.kernel-lsp/generated``, each with a JSON file that says what it was made of, so that a run of one can be
resumed and shown where the user has the code.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pydantic import ValidationError

from kernel_lsp.engine.messages import ExtractedLines, Origin
from kernel_lsp.errors import EnvironmentProblem, TargetError
from kernel_lsp.evolve.archive.archive import FOLDER_NAME

GENERATED_FOLDER = "generated"


def write_generated(workspace: Path, name: str, text: str, origin: Origin) -> Path:
    """The Python file `name` with the text; returns where. Raises EnvironmentProblem when it cannot be written."""
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


def origin_of(path: Path) -> Origin:
    """What a file was made of; itself, when it was not made by us."""
    if path.parent.name == GENERATED_FOLDER and path.parent.parent.name == FOLDER_NAME:
        try:
            return Origin.model_validate_json(path.with_suffix(".json").read_text(encoding="utf-8"))
        except (OSError, ValidationError):
            pass  # somebody tidied up: then the file is all there is to show
    return Origin(file=path)


def file_of_lines(file: Path, lines: ExtractedLines) -> str:
    """A file that has the function alone, with the names that it uses of the file that the lines are from. Raises
    TargetError when that cannot be imported by its name."""
    root, module = _module_name(file)
    what = f"Lines {lines.first_line} to {lines.last_line} of {file.name}, as a function of what they use."
    parts = [f'"""{what} Written by kernel-lsp."""', "import sys", f"sys.path.insert(0, {str(root)!r})"]
    if lines.global_names:
        parts.append(f"from {module} import {', '.join(lines.global_names)}")
    return "\n".join([*parts, "", "", lines.function, ""])


# --- below


def _module_name(file: Path) -> tuple[Path, str]:
    """The folder that Python's path needs, and the dotted name of the file from there, packages included."""
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
