"""The memory lines of the accuracy table: weights on a card and key-value pools against published starts.

python benchmarks/accuracy_memory.py
"""

import sys

from moebox.planner.published import forecast_kv_tokens, forecast_weights_gib, published_starts

WEIGHTS_WITHIN, POOL_WITHIN = 0.03, 0.04
KV, OTHERS = "KV capacity", "KV, not held"  # the second: shown so that what the model misses is seen too


def cases() -> list[tuple[str, str, str, float, float]]:
    """Every row: group, run, settings, published, forecast."""
    found = [
        ("weights per GPU", one.run, one.settings_text, one.weights_gib, forecast_weights_gib(one))
        for one in published_starts("weights")
    ]
    pools = [(KV if one.held else OTHERS, one) for one in published_starts("pool")]
    found += [
        (group, one.run, one.settings_text, float(one.kv_tokens), float(forecast_kv_tokens(one)))
        for group, one in pools
    ]
    return found


def memory_rows() -> list[dict[str, float | str]]:
    """The same as plain rows with their error."""
    return [
        {"what": what, "run": run, "at": at, "published": seen, "forecast": told, "error": told / seen - 1}
        for what, run, at, seen, told in cases()
        if what != OTHERS
    ]


def figures() -> list[tuple[str, str, str, str, bool]]:
    """A line of the accuracy table for weights and one for pools; `--rows` prints every row as well."""
    if "--rows" in sys.argv:
        main()
    lines = []
    for what, within in (("weights per GPU", WEIGHTS_WITHIN), (KV, POOL_WITHIN)):
        errors = [abs(told / seen - 1) for group, _, _, seen, told in cases() if group == what]
        reached = f"worst {max(errors):.1%} of {len(errors)} rows"
        lines.append((what, "published starts", f"within {within:.0%}", reached, max(errors) <= within))
    return lines


def main() -> int:
    """Print every row; 1 when one misses its bound."""
    missed = 0
    for what, run, at, seen, told in cases():
        within = WEIGHTS_WITHIN if what.startswith("weights") else POOL_WITHIN
        good = abs(told / seen - 1) <= within or what == OTHERS
        missed += not good
        mark = "" if good else "  MISSED"
        print(f"{what:16} {run:22} {at:32} {seen:>12,.2f} {told:>12,.2f} {told / seen - 1:+7.2%}{mark}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
