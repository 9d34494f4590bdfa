"""Reads start rules from engine sources and writes them as TOML."""
