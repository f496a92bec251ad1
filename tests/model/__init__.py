"""A model of the session: the real backend on a real file, with agents, time and threads that a test drives.

`loop` is the event loop that runs one step at a time, `database` the real SQLite file without a thread, `machine`
where agents live, `agent` an agent by script, `world` all of it together; `laws` says what must hold.
"""
