"""Several boxes behind one router, as facts and arithmetic; `flows.fleet_*` starts them.

`file` reads the fleet file, `users` describes the load, `route` has the routing policies, `simulate` runs a fleet in
virtual time, `size` finds the smallest fleet, `cost` its cost; `routers` and `k8s` write the configuration of routers.
"""
