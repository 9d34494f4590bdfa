"""A config.json's fields, each checked as it is read."""

from typing import Any

from moebox.errors import BadInput

Config = dict[str, Any]
LARGEST_NUMBER = 2**40  # no field of a config is larger


class ConfigFields:
    """A config's fields, each checked as it is read; errors name the file and the field."""

    def __init__(self, values: Config, where: str) -> None:
        self.values = values
        self.where = where

    def integer(self, *names: str, default: int | None = None, least: int = 0) -> int:
        """The first of `names` that is there, as a whole number not below `least`."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value < LARGEST_NUMBER:
                raise BadInput(
                    f"{self.where}: {name} is {str(value)[:60]!r}; it must be a whole number of at least {least}"
                )
            return value
        if default is None:
            raise BadInput(f"{self.where}: {names[0]} is missing")
        return default

    def is_true(self, name: str) -> bool:
        """Whether a field is there and true."""
        return bool(self.values.get(name))

    def name_list(self, name: str) -> list[str]:
        """A list of names, such as the kind of every layer; [] when it is not there."""
        value = self.values.get(name)
        return [str(entry) for entry in value] if isinstance(value, list) else []
