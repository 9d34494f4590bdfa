"""Several boxes behind one router, as facts and arithmetic: the fleet file, its users, simulation, sizing, cost, files.

`file` is what a person writes, `users` what is asked of the fleet, `route` who gets a request, `simulate` runs it in
virtual time, `size` finds how many boxes are enough, `cost` what they cost; `routers` writes the configuration of
routers that exist. Nothing here starts anything: `flows.fleet_*` does.
"""
