"""The demo agent, and the demonstration that drives it."""
