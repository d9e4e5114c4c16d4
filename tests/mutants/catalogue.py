"""The catalogue: all mutants there are."""

from __future__ import annotations

from tests.mutants import databases, families, rules, runs, workers

MUTANTS = (*rules.MUTANTS, *databases.MUTANTS, *workers.MUTANTS, *runs.MUTANTS, *families.MUTANTS)
