"""Workers that die, freeze or are cut off at every possible moment. The outcome must not change."""
