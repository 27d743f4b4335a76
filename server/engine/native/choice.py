"""FormatChoice: which formats weights are held in, and which one a step of so many rows reads."""

from __future__ import annotations

from dataclasses import dataclass

from server.engine.native.formats import Format


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """One format, or one for few rows and another for many.

    Attributes:
        few: for steps of fewer than ``switch_rows`` rows.
        many: for the others; the same as ``few`` when there is one copy.
        switch_rows: the first number of rows that reads ``many``.
    """

    few: Format
    many: Format
    switch_rows: int = 0

    @property
    def formats(self) -> tuple[Format, ...]:
        """What is held, ``few`` first."""
        return (self.few,) if self.few == self.many else (self.few, self.many)

    def of(self, num_rows: int) -> Format:
        """The format for a step of so many rows."""
        return self.few if num_rows < self.switch_rows else self.many

    def __str__(self) -> str:
        if self.few == self.many:
            return self.few
        return f"{self.few} below {self.switch_rows} rows, {self.many} from there on"
