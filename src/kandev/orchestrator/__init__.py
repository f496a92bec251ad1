"""Decides what happens to tasks and sessions: launch, status, resume, prompt, stop, recover, reconcile."""
