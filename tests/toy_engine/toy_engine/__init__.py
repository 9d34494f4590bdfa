"""An engine outside moebox: its traits, its object and its flags, as docs/engines.md asks for."""
