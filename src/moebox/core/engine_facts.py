"""Facts that a running engine reports in its log and endpoints, as `up` shows and the journal stores them."""

from collections.abc import Mapping
from typing import Self

import msgspec

from moebox.loose import drop_keys


class MemorySizes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes by use; None if the engine does not report it."""

    weights_bytes: float | None = None
    kv_bytes: float | None = None
    activation_bytes: float | None = None
    graph_bytes: float | None = None
    used_bytes: float | None = None
    free_bytes: float | None = None

    def sizes_by_name(self) -> dict[str, float]:
        sizes = {name: getattr(self, name) for name in self.__struct_fields__ if name.endswith("_bytes")}
        return {name: float(value) for name, value in sizes.items() if value is not None}


class DeviceFacts(MemorySizes, frozen=True, omit_defaults=True):
    device: str = ""
    total_bytes: float | None = None
    overhead_bytes: float | None = None

    def merge_with(self, other: "DeviceFacts") -> "DeviceFacts":
        """Add the sizes of another device, under this one's name."""
        mine, theirs = self.sizes_by_name(), other.sizes_by_name()
        both = {name: mine.get(name, 0.0) + theirs.get(name, 0.0) for name in {**mine, **theirs}}
        return DeviceFacts(device=self.device, **both)


class EngineFacts(MemorySizes, frozen=True, omit_defaults=True):
    kv_tokens: float | None = None
    context: float | None = None
    slots: float | None = None
    max_concurrency: float | None = None
    load_s: float | None = None
    compile_s: float | None = None
    graph_s: float | None = None
    init_s: float | None = None
    version: str = ""
    memory_note: str = ""
    other: dict[str, float] = msgspec.field(default_factory=dict)  # further facts of engines of other packages
    devices: tuple[DeviceFacts, ...] = msgspec.field(default_factory=lambda: ())  # so it is written even if empty

    @classmethod
    def from_figures(cls, figures: Mapping[str, float], devices: tuple[DeviceFacts, ...] = ()) -> Self:
        """Sort figures into fields by name; unknown names go to `other`."""
        known = {name: value for name, value in figures.items() if name in cls.__struct_fields__}
        return msgspec.convert({**known, "other": drop_keys(figures, *known), "devices": devices}, cls)
