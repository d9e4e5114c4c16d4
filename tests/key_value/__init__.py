"""Drivers around drivers of the key-value store: they count calls, lose answers, and stop between two calls."""
