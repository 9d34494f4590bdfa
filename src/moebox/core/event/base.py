"""What every event of a journal is."""

import msgspec
from msgspec import field

from moebox import codec
from moebox.loose import Json


class Event(msgspec.Struct, frozen=True, tag_field="kind"):
    """Something that happened in a run."""

    @property
    def kind(self) -> str:
        """Its name in the journal."""
        return str(self.__struct_config__.tag)

    @property
    def data(self) -> Json:
        """Its fields as they stand in the journal."""
        fields: dict[str, object] = codec.to_plain(self)
        fields.pop("kind", None)
        return fields


class UnknownEvent(Event, frozen=True):
    """An event of another version, or of another program."""

    name: str
    fields: Json = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Its name in the journal."""
        return self.name

    @property
    def data(self) -> Json:
        """Its fields as they stand in the journal."""
        return self.fields


class JournalLost(Event, tag="journal.lost", frozen=True):
    """Writes that a full disk refused, by file."""

    files: dict[str, int] = field(default_factory=dict)
