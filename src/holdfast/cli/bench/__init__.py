"""The measurements of `holdfast bench`, and the empty store on which they run."""
