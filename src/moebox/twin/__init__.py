"""The twin: a simulated engine in real time behind an OpenAI-compatible server, for boxes one does not own.

`engine` runs the planner's scheduler against the wall clock, `app` is the HTTP side, `metrics` speaks vLLM's names,
`filler` makes the text. Every response and page says that it is a simulation.
"""
