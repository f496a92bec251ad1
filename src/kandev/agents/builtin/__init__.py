"""The built-in agents: one file each, which defines `AGENT`. The registry finds them here by itself."""
