"""Frames of HTTP/2 (RFC 9113), for what a gRPC client does not send: half calls, and thousands of cancelled ones."""

from __future__ import annotations

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS = 1, 4
_HEADER_BYTES = 9
#: The most bytes of a frame, unless the receiver allows more (SETTINGS_MAX_FRAME_SIZE).
_MAX_PAYLOAD_BYTES = 16_384
#: The setting SETTINGS_INITIAL_WINDOW_SIZE, and the error code CANCEL.
_INITIAL_WINDOW_SIZE, _CANCEL = 4, 8


def preface(window: int = 65_535) -> bytes:
    """Opens a connection with this flow-control window."""
    setting = _INITIAL_WINDOW_SIZE.to_bytes(2) + window.to_bytes(4)
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, setting)


def call(stream: int, path: str) -> bytes:
    """The headers of a gRPC call, whose message has not come. Streams of clients have odd numbers."""
    fields = b"\x83\x86" + _literal(b"\x04", path) + _literal(b"\x01", "localhost")  # POST, http, :path, :authority
    fields += _literal(b"\x0f\x10", "application/grpc") + b"\x00" + _literal(b"\x02te", "trailers")
    return frame(HEADERS, _END_HEADERS, stream, fields)


def message(stream: int, content: bytes) -> bytes:
    """The only message of a call."""
    left, frames = b"\x00" + len(content).to_bytes(4) + content, b""
    while len(left) > _MAX_PAYLOAD_BYTES:
        frames += frame(DATA, 0, stream, left[:_MAX_PAYLOAD_BYTES])
        left = left[_MAX_PAYLOAD_BYTES:]
    return frames + frame(DATA, _END_STREAM, stream, left)


def cancel(stream: int) -> bytes:
    return frame(RST_STREAM, 0, stream, _CANCEL.to_bytes(4))


def ping() -> bytes:
    return frame(PING, 0, 0, bytes(8))


def window_update(stream: int, size: int) -> bytes:
    """Lets the service send this many bytes more of a stream."""
    return frame(WINDOW_UPDATE, 0, stream, size.to_bytes(4))


def kinds(received: bytes) -> list[int]:
    """The kinds of the whole frames in what was received."""
    found = []
    while len(received) >= _HEADER_BYTES + (length := int.from_bytes(received[:3])):
        found.append(received[3])
        received = received[_HEADER_BYTES + length :]
    return found


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def _literal(name: bytes, value: str) -> bytes:
    """A field with the index or the text of its name, as HPACK writes it without a table (RFC 7541)."""
    return name + bytes([len(value)]) + value.encode()
