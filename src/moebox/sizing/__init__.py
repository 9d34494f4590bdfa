"""Bytes that a rank holds and reads: shards, caches, workspaces. Memory and speed both ask here; nowhere else."""
