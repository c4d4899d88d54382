"""The report of `Engine.health()`: its findings, one by one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Check(msgspec.Struct, frozen=True):
    """One finding."""

    name: str
    """The thing that was looked at."""
    ok: bool
    """Whether all is well."""
    detail: str
    """The finding in words."""
    fix: str = ""
    """The remedy if it is not `ok`. If it is `ok`, a way to make more possible, or an empty text."""
    unused: bool = False
    """Whether it is `ok` only because it is unused, such as a provider without a key that is in no models.yaml."""


class HealthReport(msgspec.Struct, frozen=True):
    """The findings of `Engine.health`."""

    ok: bool
    """Whether every check is ok."""
    checks: tuple[Check, ...]
    """The checks in the order of looking."""


def report_of(checks: Sequence[Check]) -> HealthReport:
    return HealthReport(all(check.ok for check in checks), tuple(checks))
