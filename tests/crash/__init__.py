"""Kills at every failpoint, one at a time: the CRASH rules and the invariants hold when things go on."""
