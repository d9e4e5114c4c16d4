"""What every test has: property tests without a stopwatch.

Fixtures that users may want too live in `holdfast.testing.plugin`, which pytest loads by itself.
"""

from __future__ import annotations

from hypothesis import settings

# No deadline: a slow machine is not a bug, and a test that hangs meets the time limit of every test.
settings.register_profile("holdfast", deadline=None, print_blob=True)
settings.load_profile("holdfast")
