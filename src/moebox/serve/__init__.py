"""From a recipe to a live endpoint, and down again.

order      prepare a launch and start it under a guard
preflight  checks before a launch
session    start a recipe, wait until it answers, stop it
ports      start it on a free port
watch      follow the log of a starting engine
faults     the ways a launch can fail
facts      what a live engine answers, compared with the plan
guard      the process between moebox and the engine
state      records of running engines, keys of moebox's own servers
stop       stop engines of other moebox processes
program    routers and twins under a guard
nodes      several nodes: node_checks, conduct (here), agent (there)
embedded   llama.cpp inside a child process
dummy      a GGUF of real shapes with dummy weights
connect    settings of clients, and a call as a client makes it
"""
