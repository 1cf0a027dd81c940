"""Fusion rules: pure functions from one `Plan` to the next, which engines list in order."""
