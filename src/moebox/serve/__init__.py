"""From a recipe to a live endpoint, and down again.

session    start a recipe, wait until it answers, stop it; what flows and commands call
preflight  what is refused before anything starts
watch      follows the log and the port of a starting engine
guard      the process between moebox and the engine: outlives neither
state      what runs now, on which port and cards
embedded   llama.cpp inside a child process of ours
"""
