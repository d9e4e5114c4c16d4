"""The catalogue of all mutants."""

from __future__ import annotations

from tests.mutants import databases, durability, families, producers, rules, runs, workers

MUTANTS = (
    *rules.MUTANTS,
    *databases.MUTANTS,
    *durability.MUTANTS,
    *workers.MUTANTS,
    *runs.MUTANTS,
    *families.MUTANTS,
    *producers.MUTANTS,
)
