"""Workers that die, freeze or are cut off at every possible moment, and what must come out all the same."""
