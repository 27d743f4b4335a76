"""The token that row servers and their readers share, read from its file."""

from __future__ import annotations

from pathlib import Path

from engram_core.errors import ConfigError


def read_row_token(name: str, file: str) -> str:
    """The token in a file, without the line's end; it travels in a header, hence ASCII.

    Args:
        name: of the setting, for errors.
        file: where the token is.

    Raises:
        ConfigError: the file cannot be read, or holds no token.
    """
    accepted = "a file with one line of ASCII"
    try:
        token = Path(file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not ASCII"
        raise ConfigError(
            f"{name} is {Path(file).name!r}, which cannot be read ({reason}); accepted: {accepted}"
        ) from None
    if not token:
        raise ConfigError(f"{name} is {Path(file).name!r}, which is empty; accepted: {accepted}")
    return token
