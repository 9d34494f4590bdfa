"""Agents at work: seeded jobs with tools, done against an endpoint and scored by what the files do afterwards."""
