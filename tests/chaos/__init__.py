"""Chaos: sessions that stream, clients that prompt and follow, and a seeded schedule of what goes wrong.

`make chaos ROUNDS=1000 SEED=5`, or `PYTHONPATH=tests python -m chaos --rounds 20 --seed 5 --episode 3`. Agents that
outlive the backend: `make chaos ARGS="--runtime detached"`, and `--runtime docker`, which starts an engine of its own.
"""
