"""From a recipe to a live endpoint, and down again.

order      what will be run, decided before anything is
preflight  what is refused before anything starts
session    start a recipe, wait until it answers, stop it; what flows and commands call
watch      follows the log and the port of a starting engine
faults     how a launch goes wrong, each way with its own line
facts      what a live engine says of itself; reality: beside the plan
guard      the process between moebox and the engine: outlives neither
state      what runs now, on which port and GPUs; keys: those that moebox made for servers of its own
stop       stops what another moebox started, and sweeps up
embedded   llama.cpp inside a child process of ours
dummy      a GGUF of real shapes without knowledge
render     stand-alone files; connect: clients' configurations
"""
