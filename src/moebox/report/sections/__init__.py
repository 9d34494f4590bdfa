"""One chapter of the report per module. It imports none: the rules use figures of chapters that use the rules."""
