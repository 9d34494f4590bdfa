"""Correctness checks for any OpenAI-compatible endpoint."""
