"""The demo of `holdfast demo`: an application, its worker processes, and the two acts of the demo."""
