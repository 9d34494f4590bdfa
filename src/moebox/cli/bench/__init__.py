"""`moebox bench`: flags to a plan (`args`), the measurement (`command`), and its results kept and shown (`results`)."""
