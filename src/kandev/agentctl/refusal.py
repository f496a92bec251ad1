"""The one error that agentctl answers with."""

from typing import Any

__all__ = ["Refusal"]


class Refusal(Exception):  # it is an answer, not a fault
    """Raised when a request cannot be served; becomes the HTTP answer `status` with {code, message, ...details}."""

    def __init__(self, status: int, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = details
