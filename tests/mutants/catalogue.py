"""The catalogue of all mutants."""

from __future__ import annotations

from tests.mutants import databases, durability, families, flows, producers, rules, runs, workers

MUTANTS = (
    *rules.MUTANTS,
    *databases.MUTANTS,
    *durability.MUTANTS,
    *workers.MUTANTS,
    *runs.MUTANTS,
    *families.MUTANTS,
    *flows.MUTANTS,
    *producers.MUTANTS,
)
