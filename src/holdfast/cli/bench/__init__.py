"""The measurements of `holdfast bench`: what is measured, and the empty store it is measured on."""
