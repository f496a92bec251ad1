"""Agents that do as they are told, for tests."""
