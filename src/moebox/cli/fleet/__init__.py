"""`moebox fleet`: several boxes behind a router: `plan` finds them, `commands` starts, verifies and measures them."""
