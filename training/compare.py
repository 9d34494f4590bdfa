"""Two results of `training.evaluate` with the same seed, answer by answer.

    python -m training.compare llama.json vllm.json

For each family: right answers of both, replies with the same grade, replies with the same text, and (with --logprobs)
how much less sure the second was of replies that both gave, in thousandths of a nat a token, with its 95% interval.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from pathlib import Path
from typing import Any


def interval(values: list[float]) -> tuple[float, float]:
    """The mean and the half width of its 95% interval."""
    if len(values) < 2:
        return (values[0] if values else math.nan), math.inf
    return statistics.fmean(values), 1.96 * statistics.stdev(values) / math.sqrt(len(values))


def grades(row: dict[str, Any]) -> list[bool] | None:
    """Which replies were right; None in results that are older than the column."""
    found = row.get("grades")
    return list(found) if found is not None else [True] * row["of"] if row["right"] == row["of"] else None


def compare(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """One family."""
    count = min(len(first["replies"]), len(second["replies"]))
    pairs = list(zip(first["replies"][:count], second["replies"][:count], strict=True))
    same = [one == other for one, other in pairs]
    marks = (grades(first), grades(second))
    found: dict[str, Any] = {"of": count, "same_text": sum(same)}
    if marks[0] is not None and marks[1] is not None:
        both = list(zip(marks[0][:count], marks[1][:count], strict=True))
        found |= {"right": [sum(one for one, _ in both), sum(other for _, other in both)]}
        found["same_grade"] = sum(one == other for one, other in both)
    sure = zip(first.get("surprise", []), second.get("surprise", []), same, strict=False)
    drops = [1e3 * (other - one) for one, other, alike in sure if alike and one is not None and other is not None]
    if drops:
        found["less_sure"] = interval(drops)
    return found


def main() -> None:
    """Command line."""
    first, second = (json.loads(Path(name).read_text()) for name in sys.argv[1:3])
    total = {"of": 0, "same_grade": 0, "same_text": 0}
    for name in (name for name in first if name in second):
        row = compare(first[name], second[name])
        for key in total:
            total[key] += row.get(key, 0)
        right = "right {} and {}, ".format(*row["right"]) if "right" in row else ""
        sure = "less sure by {:.2f} ± {:.2f} mnat".format(*row["less_sure"]) if "less_sure" in row else ""
        grade = f"same grade {row['same_grade']}, " if "same_grade" in row else ""
        print(f"{name:14} {row['of']:4} asked, {right}{grade}same text {row['same_text']}  {sure}")
    print(f"{'all':14} {total['of']:4} asked, same grade {total['same_grade']}, same text {total['same_text']}")


if __name__ == "__main__":
    main()
