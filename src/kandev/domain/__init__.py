"""The pure core: models, state machines and decisions. No I/O, no asyncio."""
