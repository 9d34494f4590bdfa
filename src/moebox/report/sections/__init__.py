"""One chapter of the report per module. This file imports none: the rules use figures of chapters that use the rules."""
