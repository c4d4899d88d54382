"""Header values that a configuration gives: stripped, and checked before anything could log or send them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from callboard.bus.errors import ConfigurationError, InvalidRequestError

from ..config import AdapterConfig

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def with_clean_headers(config: AdapterConfig, name: str) -> AdapterConfig:
    """The configuration without white space around keys and header values.

    Args:
        config: The configuration.
        name: The adapter's name.

    Raises:
        ConfigurationError: No header can carry a value. The text names its field and doesn't quote it.
    """
    key = config.api_key
    if isinstance(key, str):
        key = _clean(key, f"{name}: api_key")
    keys = {
        each: _clean(given, f"{name}: keys[{each!r}]") if isinstance(given, str) else given
        for each, given in config.keys.items()
    }
    headers = {
        header: _clean(value, f"{name}: extra_headers[{header!r}]") for header, value in _named(config, name)
    }
    if key == config.api_key and headers == config.extra_headers and keys == config.keys:
        return config
    return msgspec.structs.replace(config, api_key=key, extra_headers=headers, keys=keys)


def check_sendable(headers: Mapping[str, str]) -> None:
    """Raise InvalidRequestError for a header that can't be sent. It names the header and doesn't quote it."""
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()) and fault_of(value) is not None:
            raise InvalidRequestError(f"the header {name!r} holds {fault_of(value)}, which can't be sent")


def _named(config: AdapterConfig, name: str) -> list[tuple[str, str]]:
    for header in config.extra_headers:
        if not _NAME.fullmatch(header):
            raise ConfigurationError(f"{name}: extra_headers has a name that no header can have: {header[:40]!r}")
    return list(config.extra_headers.items())


def _clean(value: str, field: str) -> str:
    value = value.strip()
    found = fault_of(value)
    if found is not None:
        raise ConfigurationError(f"{field} holds {found}, which no HTTP header can carry")
    return value


def fault_of(value: str) -> str | None:
    """What in a value no header can carry, told without the value; None for a value that can be sent."""
    for at, character in enumerate(value):
        if character in "\r\n":
            return f"a line break (character {at + 1} of {len(value)})"
        if not character.isascii():
            return f"a character that is none of ASCII (character {at + 1} of {len(value)})"
        if not character.isprintable() and character != "\t":
            return f"a control character (character {at + 1} of {len(value)})"
    return None
