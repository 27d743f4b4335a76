"""FrameWriter: compresses what is written to it, 64 MiB to a Zstandard frame, and sums the frames.

Any Zstandard program expands the file; here each frame is checked against its checksum first. Knows
no rows.
"""

from __future__ import annotations

import hashlib
from typing import Any, BinaryIO

from engram_core.errors import ArtefactError, ConfigError, MismatchError
from engram_core.tables.packed_file import CHUNK_BYTES

_LEVEL = 3  # higher ones take many times as long and gain about a percent on rows


class FrameWriter:
    """Takes bytes front to back and writes frames.

    Args:
        file: open for writing, at its start.

    Raises:
        ConfigError: the Zstandard library is not installed.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._compressor = zstandard().ZstdCompressor(level=_LEVEL)
        self._pending = bytearray()
        self._frame_bytes: list[int] = []
        self._sums: list[str] = []

    def write(self, data: Any) -> int:
        """Take the next bytes."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), CHUNK_BYTES):  # each may fill one frame and begin another
            part = view[start : start + CHUNK_BYTES]
            room = CHUNK_BYTES - len(self._pending)
            self._pending += part[:room]
            if len(self._pending) == CHUNK_BYTES:
                self._close_frame()
            self._pending += part[room:]
        return len(view)

    def finish(self) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """Write the last frame; returns every frame's bytes and sha256 (hexadecimal)."""
        if self._pending:
            self._close_frame()
        return tuple(self._frame_bytes), tuple(self._sums)

    def _close_frame(self) -> None:
        frame = self._compressor.compress(self._pending)
        self._file.write(frame)
        self._frame_bytes.append(len(frame))
        self._sums.append(hashlib.sha256(frame).hexdigest())
        self._pending = bytearray()


def expand_frame(frame: bytes, num_bytes: int, where: str) -> bytes:
    """The `num_bytes` that a frame was made of.

    Raises:
        MismatchError: it declares another size. ArtefactError: it is no whole frame.
        ConfigError: the Zstandard library is not installed.
    """
    library = zstandard()
    try:
        declared = library.frame_content_size(frame)
        if declared != num_bytes:  # before memory for it is asked for
            raise MismatchError(
                "bytes of a frame when expanded", expected=num_bytes, found=declared, where=where
            )
        expanded: bytes = library.ZstdDecompressor().decompress(frame)
    except library.ZstdError as error:
        raise ArtefactError(f"{where} holds a frame that cannot be expanded: {error}") from None
    return expanded


def zstandard() -> Any:
    """The library, an extra. Raises ConfigError where it is not installed."""
    try:
        import zstandard as library  # noqa: PLC0415
    except ImportError:
        raise ConfigError(
            "compression zstd needs zstandard, which is not installed; accepted: "
            "pip install 'engram-server[compress]'"
        ) from None
    return library
