"""Whole applications. Each scenario runs on every stage: memory, memory with constant replay, and the real stores."""
