"""Convert a model's code to a candidate's text, with our own target in its plan."""

from __future__ import annotations

import re

_VERSION = re.compile(r"^//[ \t]*kernel-lsp[ \t]*:[^\n]*\n", re.MULTILINE)
_TASK = re.compile(r"^//[ \t]*task[ \t]*:[^\n]*\n(?://[ ]{3,}[^\n]*\n)*", re.MULTILINE)
_CODE = re.compile(r"^(?!//)", re.MULTILINE)


def assemble(code: str, target: str) -> str:
    """Return the file's text with `target` on its `task:` line, and one newline at the end. Code without a plan is
    unchanged: the evaluation reports what is missing."""
    text = "\n".join(line.rstrip() for line in code.replace("\r\n", "\n").split("\n")).strip("\n") + "\n"
    version = _VERSION.search(text)
    if version is None:
        return text
    end = _CODE.search(text, version.end())
    plan_end = end.start() if end is not None else len(text)
    plan = _TASK.sub("", text[version.end() : plan_end])
    return f"{text[: version.end()]}// task: {target}\n{plan}{text[plan_end:]}"
