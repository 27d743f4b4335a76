"""Moves what hangs on a decoder layer to the one that takes its place."""

from __future__ import annotations

from torch import nn

# shared with the original, so that the handles of hooks go on working
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)


def carry_over(original: nn.Module, replacement: nn.Module) -> None:
    """Hooks, and the plain facts that a model may read from its layers (``attention_type``)."""
    for name in _HOOKS:
        setattr(replacement, name, getattr(original, name))
    for name, value in vars(original).items():
        is_fact = isinstance(value, bool | int | float | str | None)
        if is_fact and not name.startswith("_") and not hasattr(replacement, name):
            setattr(replacement, name, value)
