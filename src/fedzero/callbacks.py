"""Callbacks of those who do not look on."""

from __future__ import annotations


def ignore(*_: object) -> None:
    """Whatever happens."""


def always_false() -> bool:
    return False
