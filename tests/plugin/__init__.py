"""The pytest plugins of this project: two tiers of tests, and a summary of what was tested and what was not.

`tests/conftest.py` loads both modules as plugins.
"""
