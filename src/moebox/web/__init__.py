"""The local page: plan with sliders, look at runs, watch one live. It calls what the command line calls."""
