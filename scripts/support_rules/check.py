"""Answers questions from the TOML."""
import argparse
from pathlib import Path
def add_arguments(p: argparse.ArgumentParser) -> None: ...
def run(o: argparse.Namespace, data: Path) -> int: return 0
