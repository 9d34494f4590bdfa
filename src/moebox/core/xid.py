"""NVIDIA's Xids: what each number in the kernel log means, whose fault it usually is, and what to do."""

import functools
import re
from dataclasses import dataclass
from typing import Literal

from moebox.core.catalogue import table_rows
from moebox.core.symptom import Severity

LINE = re.compile(r"NVRM: Xid \([^)]*\): (?P<xid>\d+)")
Owner = Literal["application", "driver", "hardware", "thermal", "bus"]
FAULTS: dict[Owner, str] = {
    "application": "the program that ran on the GPU",
    "driver": "the driver or its firmware",
    "hardware": "the GPU itself",
    "thermal": "cooling or power",
    "bus": "the PCIe link: slot, riser, cable or power",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Xid:
    """A row of data/xids.toml."""

    number: int
    name: str
    meaning: str
    owner: Owner
    action: str
    severity: Severity
    source: str

    @property
    def cause(self) -> str:
        """The meaning and the usual fault in one text."""
        return f"Xid {self.number}, {self.name}: {self.meaning} Usually the fault of {FAULTS[self.owner]}."


@functools.cache
def xids() -> dict[int, Xid]:
    """Every Xid of NVIDIA's table by number."""
    return {xid.number: xid for xid in table_rows(Xid, "xids", "xid")}


def xid_of_line(line: str) -> Xid | None:
    """The Xid that a kernel log line reports, or None if it reports none that is known."""
    match = LINE.search(line)
    return xids().get(int(match["xid"])) if match else None
