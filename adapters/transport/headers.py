"""Header values from a configuration: stripped, checked and masked."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import msgspec

from callboard.bus.errors import AdapterError, ConfigurationError, InvalidRequestError

from ..config import AdapterConfig

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def with_clean_headers(config: AdapterConfig, name: str) -> AdapterConfig:
    """The configuration without white space around keys and header values."""
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
    """Raise InvalidRequestError for a header that can't be sent. It names the header without its value."""
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
    """The reason why a value can't be a header, without the value; None if it can."""
    for at, character in enumerate(value):
        if character in "\r\n":
            return f"a line break (character {at + 1} of {len(value)})"
        if not character.isascii():
            return f"a character that is none of ASCII (character {at + 1} of {len(value)})"
        if not character.isprintable() and character != "\t":
            return f"a control character (character {at + 1} of {len(value)})"
    return None


# --- Masking of keys ---

MASK = "***"

_SECRET_HEADERS = ("auth", "key", "token", "cookie")
_MOST_SECRETS = 1000
_SHORTEST_SECRET = 6  # masking a shorter one would only garble the text


def given_keys(config: AdapterConfig) -> list[str]:
    """The keys with a value in the configuration. Keys from functions are not known yet."""
    return [key for key in (config.api_key, *config.keys.values()) if isinstance(key, str) and key]


def secrets(config: AdapterConfig) -> tuple[str, ...]:
    """The values to mask: the key, and extra headers with a key."""
    values = given_keys(config)
    for name, value in config.extra_headers.items():
        if any(part in name.lower() for part in _SECRET_HEADERS):
            values.append(value)
            values.append(value.rpartition(" ")[2])  # without the word before it, such as Bearer
    return tuple(dict.fromkeys(value for value in values if len(value) >= _SHORTEST_SECRET))


def with_secret(hidden: tuple[str, ...], value: str) -> tuple[str, ...]:
    """Secrets and a new one. Beyond a limit the oldest are dropped."""
    if len(value) < _SHORTEST_SECRET or value in hidden:
        return hidden
    return (*hidden, value)[-_MOST_SECRETS:]


def masked(text: str, hidden: Sequence[str]) -> str:
    """The text without the secrets in it."""
    for secret in hidden:
        if secret in text:
            text = text.replace(secret, MASK)
    return text


def mask_error(error: AdapterError, hidden: Sequence[str]) -> None:
    error.args = (masked(str(error), hidden),)
    for field in ("provider_message", "provider_code", "provider_param", "provider_request_id"):
        said = getattr(error, field)
        if said:
            setattr(error, field, masked(said, hidden))


def masked_headers(headers: Mapping[str, str], hidden: Sequence[str]) -> Mapping[str, str]:
    """A reply's headers without secrets; the same object if there are none."""
    for secret in hidden:
        if any(secret in value for value in headers.values()):
            headers = {name: value.replace(secret, MASK) for name, value in headers.items()}
    return headers


class _Filter(logging.Filter):
    """Masks the secrets of all living adapters in httpcore's log of headers."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: WeakKeyDictionary[object, tuple[str, ...]] = WeakKeyDictionary()

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, str):
            for hidden in list(self.hidden.values()):
                record.msg = masked(record.msg, hidden)
        return True


_FILTER = _Filter()


def hide_in_logs(owner: object, hidden: tuple[str, ...]) -> None:
    """Mask secrets in httpcore's debug log as long as their owner lives."""
    logging.getLogger("httpcore.http11").addFilter(_FILTER)  # adding it twice has no effect
    if hidden:
        _FILTER.hidden[owner] = hidden
