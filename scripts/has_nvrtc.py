"""Prints the folder of an NVRTC whose headers are at hand and exits 0; exits 1 when this machine has none.

Looks where the installed package will look: NVIDIA's wheels in this environment, then a toolkit.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

NVRTC_PATTERN = "libnvrtc.so.1[2-9]*"
HEADER = "cuda_fp16.h"


def main() -> int:
    for root in candidate_roots():
        for library in library_folders(root):
            if any(library.glob(NVRTC_PATTERN)) and any((root / folder / HEADER).is_file() for folder in INCLUDES):
                print(library)
                return 0
    return 1


INCLUDES = ("include", "targets/x86_64-linux/include", "targets/sbsa-linux/include")


def candidate_roots() -> list[Path]:
    """Where a toolkit may be, the surest first."""
    wheels = Path(sysconfig.get_path("purelib")) / "nvidia"
    named = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    return [wheels / "cu13", *named, Path("/usr/local/cuda"), *sorted(Path("/usr/local").glob("cuda-*"), reverse=True)]


def library_folders(root: Path) -> list[Path]:
    return [root / "lib", root / "lib64", root / "targets/x86_64-linux/lib", root / "targets/sbsa-linux/lib"]


if __name__ == "__main__":
    sys.exit(main())
