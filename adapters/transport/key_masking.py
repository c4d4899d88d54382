"""Keys that come back: what a server repeats of them is masked, in what we keep and in what httpcore logs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

from callboard.bus.errors import AdapterError

from ..config import AdapterConfig

MASK = "***"

_SECRET_HEADERS = ("auth", "key", "token", "cookie")
_MOST_SECRETS = 1000
_SHORTEST_SECRET = 6  # masking a shorter one would only garble the text


def given_keys(config: AdapterConfig) -> list[str]:
    """The keys whose values stand in a configuration. Those that a function gives aren't known yet."""
    return [key for key in (config.api_key, *config.keys.values()) if isinstance(key, str) and key]


def secrets(config: AdapterConfig) -> tuple[str, ...]:
    """What must not be seen: the key, and the values of extra headers that carry one."""
    values = given_keys(config)
    for name, value in config.extra_headers.items():
        if any(part in name.lower() for part in _SECRET_HEADERS):
            values.append(value)
            values.append(value.rpartition(" ")[2])  # without the word before it, such as Bearer
    return tuple(dict.fromkeys(value for value in values if len(value) >= _SHORTEST_SECRET))


def with_secret(hidden: tuple[str, ...], value: str) -> tuple[str, ...]:
    """Secrets and one more, which came while the adapter worked. The oldest of very many are forgotten."""
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
    """Take the secrets out of all that an error says."""
    error.args = (masked(str(error), hidden),)
    for field in ("provider_message", "provider_code", "provider_param", "provider_request_id"):
        said = getattr(error, field)
        if said:
            setattr(error, field, masked(said, hidden))


def masked_headers(headers: Mapping[str, str], hidden: Sequence[str]) -> Mapping[str, str]:
    """Headers of a reply without the secrets in their values; most have none, and are given back as they are."""
    for secret in hidden:
        if any(secret in value for value in headers.values()):
            headers = {name: value.replace(secret, MASK) for name, value in headers.items()}
    return headers


class _Filter(logging.Filter):
    """Takes the secrets of all adapters that live out of what httpcore logs, which is the replies' headers."""

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
    """Keep secrets out of httpcore's debug log as long as their owner lives."""
    logging.getLogger("httpcore.http11").addFilter(_FILTER)  # which it has once, however often it is added
    if hidden:
        _FILTER.hidden[owner] = hidden
