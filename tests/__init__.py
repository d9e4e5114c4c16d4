"""The promises of holdfast as executable tests. `README.md` has the folders, and where a new test goes."""
