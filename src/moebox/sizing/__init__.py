"""Bytes that a rank holds and reads: shards, caches, drafts. Memory and speed both use these figures."""
