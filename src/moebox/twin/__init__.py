"""The twin: a simulated engine in real time behind an OpenAI-compatible server, for boxes the user does not own.

`engine` runs the planner's scheduler against the wall clock, and counts under vLLM's metric names; `request` reads
requests, `app` is the HTTP server and writes replies. Every response is marked as a simulation.
"""
