"""ggml"""
from pathlib import Path
def read_repository(engine: str, folder: Path, facts: Path) -> str: return ""
