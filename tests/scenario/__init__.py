"""Whole applications, each scenario once on every stage: memory, memory with constant replay, SQLite."""
