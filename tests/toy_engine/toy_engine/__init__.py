"""An engine that lives outside moebox: a few lines for each module, as docs/engines.md asks for."""
