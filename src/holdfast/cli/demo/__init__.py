"""The demo of `holdfast demo`: an application, its worker processes, and what happens to them."""
