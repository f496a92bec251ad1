"""agentctl: a small process beside each agent that makes its stdio durable.

It starts the agent, journals every line both ways, serves the journal from any position over HTTP, and kills the
agent's whole process tree. It knows nothing of the protocol that the agent speaks. It imports the standard library
and h11 only, so that one file (`agentctl.pyz`) runs it anywhere. A walk through it: `sidecar.py` holds the parts
together, `process.py` is the running agent, `journal.py` its recorded output, `server.py` the HTTP side.
"""

__all__ = ["API_VERSION"]

API_VERSION = 1
"""Version of the HTTP interface and of the journal's records. A backend adopts its own and the one before."""
