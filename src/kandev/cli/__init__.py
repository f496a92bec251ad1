"""The command `kandev`: one module for each group of commands, and the client that they share."""
