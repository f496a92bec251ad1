"""A journal comes in pieces that end anywhere; a reader takes whole lines."""

from kandev.lifecycle.reader import Reader


class LineSplitter:
    """Cuts a stream into lines; a line over the limit is dropped and counted instead of kept (WIRE-2)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: list[bytes] = []
        self._length = 0

    def feed(self, piece: bytes, reader: Reader) -> None:
        """Hand the whole lines of `piece` to the reader; keep the rest."""
        rest = self._end_line(piece, reader) if self._length else piece
        cut = rest.rfind(b"\n")
        if cut >= 0:
            self._hand(rest[:cut].split(b"\n"), cut, reader)
        if cut + 1 < len(rest):
            self._keep(rest[cut + 1 :])

    def _end_line(self, piece: bytes, reader: Reader) -> bytes:
        """End the line that was kept with the beginning of `piece`; return what is behind it."""
        end = piece.find(b"\n")
        if end < 0:
            self._keep(piece)
            return b""
        length, pieces = self._length + end, [*self._pieces, piece[:end]]
        self._pieces, self._length = [], 0
        if length > self._limit:
            reader.too_long(length + 1, limit=self._limit)
        else:
            reader.feed([b"".join(pieces)])
        return piece[end + 1 :]

    def _hand(self, lines: list[bytes], length: int, reader: Reader) -> None:
        if length <= self._limit:
            reader.feed(lines)
            return
        for line in lines:
            if len(line) > self._limit:
                reader.too_long(len(line) + 1, limit=self._limit)
            else:
                reader.feed([line])

    def _keep(self, piece: bytes) -> None:
        self._length += len(piece)
        if self._length > self._limit:
            self._pieces = []
        else:
            self._pieces.append(piece)
