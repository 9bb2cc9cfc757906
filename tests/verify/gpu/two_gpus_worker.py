"""A worker that sees two GPUs made of Python."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_worker import serve

serve(n_devices=2)
