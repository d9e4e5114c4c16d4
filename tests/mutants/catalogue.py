"""The catalogue of all mutants."""

from __future__ import annotations

from tests.mutants import databases, durability, families, flows, key_value, producers, rules, runs, workers

MUTANTS = (
    *rules.MUTANTS,
    *databases.MUTANTS,
    *durability.MUTANTS,
    *key_value.MUTANTS,
    *workers.MUTANTS,
    *runs.MUTANTS,
    *families.MUTANTS,
    *flows.MUTANTS,
    *producers.MUTANTS,
)
