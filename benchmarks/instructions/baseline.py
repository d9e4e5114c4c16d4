"""The baseline: accepted figures, and the build they were measured with.

It contains one build. Figures of a second build would be of older code as soon as the first is stored again.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks.instructions.build import Build
from benchmarks.instructions.figures import MEASURES, OPERATIONS, STORES, Figures, Measure, Subject

PATH = Path(__file__).with_name("baseline.json")


class Baseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored format: figures by operation, store and measure."""

    build: Build
    figures: dict[str, dict[str, dict[Measure, float]]]

    def known(self) -> Figures:
        return {
            Subject(operation, store): dict(found)
            for operation, stores in self.figures.items()
            for store, found in stores.items()
        }


def load(path: Path) -> Baseline | None:
    """Return the stored baseline, or None."""
    return msgspec.json.decode(path.read_bytes(), type=Baseline) if path.exists() else None


def store(figures: Figures, build: Build, path: Path) -> None:
    """Store figures. Those of other operations stay if they are of the same build."""
    stored = load(path)
    kept = stored.known() if stored is not None and stored.build == build else {}
    merged = {**kept, **figures}
    nested: dict[str, dict[str, dict[Measure, float]]] = {}
    for operation in OPERATIONS:
        for name in STORES:
            if (found := merged.get(Subject(operation.name, name))) is not None:
                nested.setdefault(operation.name, {})[name] = {measure: found[measure] for measure in MEASURES}
    encoded = msgspec.json.encode(Baseline(build, nested))
    path.write_bytes(msgspec.json.format(encoded, indent=2) + b"\n")
