"""Several engines behind one address: boxes behind a router, and models that take turns on one box.

A plug-in: it adds `moebox fleet` and `moebox switch`, and moebox does not import it. `file` reads the fleet file,
`users` describes the load, `route` has the routing policies, `simulate` runs a fleet in virtual time, `size` finds
the smallest, `cost` its cost; `routers` writes the configuration of routers, `up` starts them. `models_file` reads
which models take turns, `model_switch` starts and stops them, `model_proxy` answers requests.
"""

GROUPS = {"fleet": "Plan, render, start, verify and measure several boxes behind a router."}
COMMANDS = {
    "switch": ("moebox_fleet.switch_command:switch", "Serve several models at one address, as many at a time as fit."),
    "fleet plan": ("moebox_fleet.plan_command:plan", "Find how many boxes of which kind serve a number of users."),
    "fleet render": ("moebox_fleet.commands:render", "Write router, Compose, Kubernetes or Slurm files."),
    "fleet up": ("moebox_fleet.commands:up", "Start the members and the router in front of them."),
    "fleet ps": ("moebox_fleet.commands:ps", "List fleets and whether their members answer."),
    "fleet down": ("moebox_fleet.commands:down", "Stop a fleet."),
    "fleet verify": ("moebox_fleet.commands:verify", "Check answers through the router; kill a member under load."),
    "fleet bench": ("moebox_fleet.commands:bench", "Measure scaling and the overhead of the router."),
}
SECTIONS = {"Serve": ("switch", "fleet")}
