"""Print geometric means by direction over the best of eager and torch.compile, of a report of `kernel-lsp bench`.

    python benchmarks/suite_means.py benchmarks/results/bench_suite-nvidia_h200-2026-11-30.json

Rows that are not verified count nowhere.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

OF_PYTORCH = ("eager", "compile")
DTYPES = ("bf16", "f16")
"""Types that a practical row names at the end; f32 otherwise."""


def main() -> int:
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for entry in json.loads(Path(sys.argv[1]).read_text())["entries"]:
        dtype = next((dtype for dtype in DTYPES if entry["target"].endswith(f"_{dtype}")), "f32")
        group = "robust-kbench" if "robust_kbench" in entry["target"] else f"practical, {dtype}"
        for times in entry["times"] if entry["status"] == "verified" else ():
            best = min(us for name, us in times["baselines_us"].items() if name.startswith(OF_PYTORCH))
            direction = "backward" if times["operation"].endswith("_backward") else "forward"
            ratios[group, direction].append(best / times["ours_us"])
    for (group, direction), found in ratios.items():
        print(f"{group:<17}{direction:<10}{statistics.geometric_mean(found):.2f}x ({len(found)})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
