"""The protocol core: lines of bytes in, frozen events out, lines of bytes out. No I/O, no asyncio."""
