"""The tables and files that ship with moebox; `core.catalogue` reads the tables."""

from pathlib import Path

FOLDER = Path(__file__).parent
