"""What holdfast promises, said in sentences that run.

`unit` mirrors `src`; `contract` holds what every store must answer alike; `scenario` drives the whole
application; `crash` ends processes; `architecture` keeps the shape of the code itself.
"""
