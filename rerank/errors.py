"""One exception per thing that a caller can act on.

Everything the caller got wrong, or that the operator can mend, is a `RerankError` with a message that names
what was given, what is allowed and the way out. Anything else that is raised is a bug of ours.
"""

from __future__ import annotations

from collections.abc import Mapping


class RerankError(Exception):
    """Base of all errors that a caller or operator can act on.

    Attributes:
        metadata: the numbers and names of the message once more, for programs.
    """

    def __init__(self, message: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.metadata = dict(metadata or {})


class InvalidRequest(RerankError):
    """The request itself is wrong. `field` names the part, in the spelling of the wire contract."""

    def __init__(self, field: str, message: str, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{field}: {message}", metadata)
        self.field = field
        self.description = message


class NotFound(RerankError):
    """A name in the request stands for nothing here: a model, or a passage of the index."""


class NotConfigured(RerankError):
    """The request needs a part that this service was started without, such as an index."""


class Overloaded(RerankError):
    """The queue is full; trying again later can succeed. `retry_after_s` is an estimate in seconds."""

    def __init__(self, message: str, retry_after_s: float, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(message, metadata)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(RerankError):
    """The answer was not ready at the request's deadline."""


class ShuttingDown(RerankError):
    """The service is stopping and takes no more work."""


class ConfigError(RerankError):
    """A setting cannot be used: unknown key, unreadable value, contradiction, missing dependency."""


class CollectionError(RerankError):
    """A collection cannot be read, or holds something that no index can take."""


class IndexMismatch(RerankError):
    """The index on disk was not made for this encoder or this version, or is no index."""


class CheckpointError(RerankError):
    """A model checkpoint lacks something or does not fit the encoder."""


class SelfTestFailed(RerankError):
    """A model loaded, but does not rank as it must. The service runs without it."""


class RankerFailure(Exception):
    """A ranker raised or answered nonsense. Not a `RerankError`: the caller can do nothing; this is a bug."""
