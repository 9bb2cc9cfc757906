"""The process of one of several GPUs, whose GPU is made of Python: ``fake_gpu_process.py FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import pytest

from kernel_lsp.verify.session import gpu_process
from tests.verify.gpu.fake_sessions import install
from tests.verify.gpu.harness import TWO

if __name__ == "__main__":
    install(Path(sys.argv[1]), pytest.MonkeyPatch(), TWO)
    gpu_process.main()
