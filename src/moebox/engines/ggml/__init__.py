"""What the two llama.cpp servers have in common."""
