"""Seeded jobs with tools for agents, done against an endpoint and scored by what the files do afterwards."""
