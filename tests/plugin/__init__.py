"""What pytest learns from this project: two tiers of tests, and a summary that says what was tested and what was not.

`tests/conftest.py` loads both modules as plugins.
"""
