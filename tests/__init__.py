"""The promises of holdfast as executable tests.

`unit` mirrors `src`. `contract` has the tests that every store must pass. `scenario` drives the whole application.
`crash` ends processes. `architecture` checks the structure of the code itself.
"""
