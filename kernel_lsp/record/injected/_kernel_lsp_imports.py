"""Notice imports of torch and of the workspace's files in the user's interpreter.

Runs inside the user's interpreter: Python 3.9 or newer, standard library only.
"""

from __future__ import annotations

import functools
import os
import sys

INSTALLED = frozenset(("site-packages", "dist-packages"))
SKIPPED_FOLDERS = INSTALLED | {"node_modules", "build", "dist", "kernels"}


class Finder:
    """Meta path finder that imports like the others, and tells the recorder about torch and the workspace's files."""

    def __init__(self, recorder):
        self.recorder = recorder

    def find_spec(self, name, path=None, target=None):
        spec = None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                break
        if name == "torch" and spec is None:
            self.recorder.has_torch = False
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            after = self.recorder.after(name, spec.origin)
            if after is not None:
                run_after(spec.loader, after)
        return spec


def run_after(loader, after):
    """Have the loader of one module call `after` with it once the module has run."""
    run = loader.exec_module

    def exec_module(module):
        loader.__dict__.pop("exec_module", None)
        run(module)
        after(module)

    loader.exec_module = exec_module


class Files:
    """The files of the workspace, by the paths that modules have."""

    def __init__(self, root):
        self.root, self.files = os.path.join(root, ""), {}
        self.is_link = functools.lru_cache(maxsize=None)(os.path.islink)

    def symbol(self, path):
        """Return a file of the workspace relative to it; empty for any other."""
        if path not in self.files:
            is_own = isinstance(path, str) and (INSTALLED.isdisjoint(path.split(os.sep)) or self._is_linked(path))
            self.files[path] = self._relative(os.path.realpath(path) if is_own else "")
        return self.files[path]

    def _is_linked(self, path):
        """Return True for a file of an installed package that is a link, as for development. Few links are looked up,
        while resolving the paths of all files took 73 ms."""
        parts = path.split(os.sep)
        first = 1 + next(place for place, part in enumerate(parts) if part in INSTALLED)
        ends = range(first + 1, max(first + 2, len(parts)))
        return any(self.is_link(os.sep.join(parts[:end])) for end in ends)

    def _relative(self, path):
        if not path.startswith(self.root) or not path.endswith(".py"):
            return ""
        file = path[len(self.root) :].replace(os.sep, "/")
        return "" if any(f.startswith(".") or f in SKIPPED_FOLDERS for f in file.split("/")[:-1]) else file
