"""Write the judges' table of docs/model-results.md from the newest `judge calibrate --json` in benchmarks/results.

python scripts/write_judge_table.py
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from kernel_lsp.llm.judges.calibration import COLUMNS, Score, cells

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "model-results.md"
BEGIN, END = "<!-- judges: written by scripts/write_judge_table.py -->\n", "\n<!-- judges: end -->"


def newest_scores() -> list[Score]:
    """Return the scores of the newest calibration."""
    newest = max((ROOT / "benchmarks" / "results").glob("judges-*.json"))
    return [Score.model_validate(score) for score in json.loads(newest.read_text())["scores"]]


def with_table(page: str, scores: list[Score]) -> str:
    """Return the page with the table of these scores."""
    rows = (COLUMNS, ("---",) * len(COLUMNS), *map(cells, scores))
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return re.sub(f"{BEGIN}.*?{END}", lambda _: BEGIN + table + END, page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(), newest_scores()))
