"""Does the pipeline say of each kernel of the judges' corpus what its label says?

    python benchmarks/judge_corpus_check.py

Labels every kernel of `judge_corpus/` on the CPU executor, as `kernel-lsp judge calibrate` does before it asks anybody,
and compares with `judge_corpus_labels.toml`. The exit status is 1 when a verdict differs. No model is asked.
"""

from __future__ import annotations

import asyncio
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kernel_lsp.config import Settings
from kernel_lsp.evolve.run.judge_calibration import Labelled, label

CORPUS = ROOT / "benchmarks" / "judge_corpus"
LABELS = ROOT / "benchmarks" / "judge_corpus_labels.toml"


def main() -> int:
    expected = {name: entry["outcome"] for name, entry in tomllib.loads(LABELS.read_text(encoding="utf-8")).items()}
    started = time.monotonic()
    kernels = asyncio.run(label(CORPUS, Settings(device="cpu")))
    elapsed_s = time.monotonic() - started
    n_differing = _print_differences(kernels, expected)
    counts = Counter(kernel.verdict.outcome.kind for kernel in kernels)
    print(", ".join(f"{n} {kind}" for kind, n in sorted(counts.items())))
    slowest = max(kernels, key=lambda kernel: kernel.verdict.evaluate_s)
    print(f"{n_differing} of {len(kernels)} differ from their label; {elapsed_s:.0f} s in all")
    print(f"the slowest, {slowest.name}, took {slowest.verdict.evaluate_s:.1f} s")
    return 1 if n_differing else 0


def _print_differences(kernels: Sequence[Labelled], expected: Mapping[str, str]) -> int:
    """Count the verdicts that are not what the labels say."""
    n_differing = 0
    for kernel in kernels:
        found, wanted = kernel.verdict.outcome.kind, expected.get(Path(kernel.name).name, "no label")
        if found != wanted:
            n_differing += 1
            print(f"{kernel.name}: {found}, and its label says {wanted}")
    return n_differing


if __name__ == "__main__":
    sys.exit(main())
