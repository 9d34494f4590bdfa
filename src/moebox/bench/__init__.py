"""Endpoint to measurements: workloads, a load generator that is never the bottleneck, and every figure defined once."""
