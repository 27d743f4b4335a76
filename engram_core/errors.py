"""Every exception that engram_core raises on purpose, in one tree.

EngramError
├── ConfigError            a setting is out of range or contradicts another one
├── ArtefactError          an artefact or table cannot be used
│   └── MismatchError      two facts that must agree do not; carries both values
├── UnsupportedModelError  the backbone would be served silently wrong
├── StateError             incremental state is asked for positions it no longer holds
├── DeviceError            a device is missing or was used before its data was ready
└── TierError              a memory tier could not deliver its rows
    ├── TierTimeoutError      nobody answered within the time that was given
    ├── TierUnreachableError  nobody answers there, or it is not asked for a while
    └── TierRefusedError      somebody answered and will not deliver these rows
IdRangeError               an id lies outside its table (also an IndexError)
"""

from __future__ import annotations

from typing import Any


class EngramError(Exception):
    """Base of all errors raised on purpose by engram_core."""


class ConfigError(EngramError, ValueError):
    """A setting is out of range or contradicts another one."""


class ArtefactError(EngramError):
    """An artefact or table cannot be used."""


class MismatchError(ArtefactError):
    """Two facts that must agree do not.

    Attributes:
        what: the fact, for example ``"tokenizer fingerprint"``.
        expected: its value where it is defined.
        found: its value where it is used.
    """

    def __init__(self, what: str, *, expected: Any, found: Any, where: str = "") -> None:
        self.what, self.expected, self.found = what, expected, found
        place = f"{where}: " if where else ""
        super().__init__(f"{place}{what} does not match: expected {expected}, found {found}")


class UnsupportedModelError(EngramError):
    """The backbone cannot be served correctly; says which layer and why."""


class StateError(EngramError):
    """Incremental state is asked for positions it no longer holds."""


class DeviceError(EngramError):
    """A device is missing, or data on it was used before it was ready."""


class TierError(EngramError):
    """A memory tier could not deliver its rows."""


class TierTimeoutError(TierError):
    """A tier did not answer within the time that was given."""


class TierUnreachableError(TierError):
    """Nobody answers where the rows should come from, or it is not asked for a while."""


class TierRefusedError(TierError):
    """Whoever has the rows answered and will not deliver them; asking again will not help."""


class IdRangeError(EngramError, IndexError):
    """A token, class or row id lies outside its table."""
