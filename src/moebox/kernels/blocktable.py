"""The attention block table that a tuning found, and the patch that puts it into SGLang's prefill attention.

An engine has one entry for each width, whatever the length: of the choices that were timed at every length, the one
with the least time over the best of each, multiplied, is taken.
"""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

from moebox.core import registry
from moebox.core.kernel import Arch
from moebox.kernels.patch import PATCH_MARK, FilePatch, patch_extend_blocks, read_engine_file
from moebox.kernels.probe.protocol import TunedRow
from moebox.kernels.probe.space import Choice
from moebox.kernels.tuning import TuningResult

_CASE = re.compile(r"(extend \d+/\d+|MLA decode).*?(bf16|fp8)?$")


def block_table(rows: Sequence[TunedRow]) -> dict[str, Choice]:
    """The best choice of each attention kernel: {"extend 576/512": {"BLOCK_M": 32, …}, "MLA decode, fp8": …}."""
    kinds: dict[str, list[TunedRow]] = {}
    for row in rows:
        case = _CASE.match(row.case)
        if case and row.best:
            name = f"{case[1]}, {case[2]}" if case[2] else case[1]
            kinds.setdefault(name, []).append(row)
    return {name: _best_common_choice(cases) for name, cases in kinds.items()}


def _best_common_choice(cases: Sequence[TunedRow]) -> Choice:
    """The choice that does best over all lengths; the longest one's own where none was timed at all of them."""
    times = [{json.dumps(timed.config, sort_keys=True): timed.ms for timed in case.field} for case in cases]
    shared = set.intersection(*(set(by_choice) for by_choice in times))
    if not shared:
        return dict(max(cases, key=lambda case: case.ms or 0.0).best or {})

    def cost(mark: str) -> float:
        return math.fsum(math.log(by_choice[mark] / min(by_choice.values())) for by_choice in times)

    return dict(json.loads(min(sorted(shared), key=cost)))


def find_extend_files(root: Path) -> list[Path]:
    """SGLang's files with the block sizes of its extend attention; the folder differs from release to release."""
    places = sorted(root.glob("sglang/**/extend_attention.py"))
    return [path for path in places if "def _get_block_sizes_for_extend_attention(" in read_engine_file(path)]


def block_table_patches(tuned: TuningResult, root: Path, limit: Arch) -> tuple[FilePatch, ...]:
    """The block table as a patch of SGLang's extend attention; nothing for other engines."""
    chosen = {name: choice for name, choice in block_table(tuned.rows).items() if name.startswith("extend ")}
    files = find_extend_files(root)
    if not registry.engine_traits(tuned.engine).moe_config_pairs or not chosen or not files:
        return ()
    before = after = read_engine_file(files[0])
    for name, choice in chosen.items():
        width = int(name.split()[1].split("/")[0])
        about = f"{PATCH_MARK} the fastest of those that were timed and fit {limit.smem:,} bytes"
        after = patch_extend_blocks(after, capability=limit.capability, width=width, choice=choice, comment=about)
    return (FilePatch(path=files[0], name=str(files[0].relative_to(root)), before=before, after=after),)
