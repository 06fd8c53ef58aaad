"""Values that are sent in a header of HTTP or as metadata of gRPC, such as keys."""

from __future__ import annotations

from rerank.errors import ConfigError


def check_header_value(name: str, value: str) -> None:
    """Checks a secret of a user: one that is read from a file often ends with a line end, which no header can have.

    Args:
        name: what the value is, for the error, which does not show the value.

    Raises:
        ConfigError: the value has characters other than printable ASCII, or begins or ends with white space.
    """
    if value != value.strip():
        raise ConfigError(
            f"{name} begins or ends with white space, such as the line end of the file that it comes from; set it "
            'without, as in "$(cat FILE)"'
        )
    for index, character in enumerate(value):
        if not " " <= character <= "~":
            raise ConfigError(
                f"{name} has the character U+{ord(character):04X} at position {index + 1}; only letters, digits "
                "and signs of ASCII can be sent, so copy it again"
            )
