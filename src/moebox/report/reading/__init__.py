"""Run folders to records: tolerant readers, one per kind of file.

Nothing here raises for what a file holds: what cannot be read becomes a note of what is missing.
"""

from moebox.report.reading.folder import read_record

__all__ = ["read_record"]
