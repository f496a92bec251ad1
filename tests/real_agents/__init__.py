"""Agents that nobody here wrote, driven on loopback against a model server of our own."""
