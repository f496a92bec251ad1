"""From a stored session to a live agent: start, initialise, prompt, read, and record."""
