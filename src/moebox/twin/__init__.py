"""The twin: a simulated engine in real time behind an OpenAI-compatible server, for boxes the user does not own.

`engine` runs the planner's scheduler against the wall clock, `request` reads requests, `openai` and `messages` write
replies, `metrics` uses vLLM's metric names, `app` is the HTTP server. Every response is marked as a simulation.
"""
