"""The package `holdfast.testing`: its public names, and its import cost."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast import testing


@pytest.mark.parametrize("name", testing.__all__)
def test_every_public_name_can_be_imported(name: str) -> None:
    assert getattr(testing, name).__name__ == name


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Harnes'"):
        testing.__getattr__("Harnes")


def test_importing_the_plugin_loads_only_the_parts_of_holdfast_that_a_test_needs() -> None:
    script = "import sys, holdfast.testing.plugin; print(*sys.modules)"
    probe = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    loaded = {name for name in probe.stdout.split() if name.startswith("holdfast.testing.")}
    assert loaded == {"holdfast.testing.plugin"}
