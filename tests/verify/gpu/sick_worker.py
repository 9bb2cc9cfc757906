"""A worker on a GPU that computes wrongly: the canary's answer is not the known one."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_worker import serve

serve(sick=True)
