"""Endpoint in, verdicts out: the ladder against any OpenAI-compatible server."""
