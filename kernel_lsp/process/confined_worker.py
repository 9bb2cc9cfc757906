"""Start a worker confined on the machine that this file was sent to.

    PYTHON -I -S confined_worker.py PYTHON PROGRAM...

It travels with its package (`remote.py`) into the worker's private folder. The machine's own kernel decides which
layers of the sandbox there are.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ("CUDA_VISIBLE_DEVICES", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "PATH", "VIRTUAL_ENV")
"""Variables of that machine that a worker gets; tokens and keys are not among them."""
OWN = ("TMPDIR", "KERNEL_LSP_FILES", "PYTHONDONTWRITEBYTECODE")


def main() -> None:
    """Become the worker."""
    sys.path.insert(0, str(ROOT))
    from kernel_lsp.process.confinement import confined_command, support
    from kernel_lsp.process.profiles import worker_confinement

    python, *program = sys.argv[1:]
    confinement = worker_confinement(support().level, Path(python), scratch=ROOT, cache=ROOT / "cache")
    command = confined_command([python, *program], "exec", confinement, parent=os.getppid())
    kept = {name: os.environ[name] for name in (*KEPT, *OWN) if name in os.environ}
    os.execvpe(command[0], command, {**kept, **dict(confinement.environment), "PYTHONUNBUFFERED": "1"})


if __name__ == "__main__":
    main()
