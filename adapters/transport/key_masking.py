"""Keys that come back: what a server repeats of them is masked, in what we keep and in what httpcore logs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

from ..contract import AdapterConfig

MASK = "***"

_SECRET_HEADERS = ("auth", "key", "token", "cookie")
_SHORTEST_SECRET = 6  # masking a shorter one would only garble the text


def secrets(config: AdapterConfig) -> tuple[str, ...]:
    """What must not be seen: the key, and the values of extra headers that carry one."""
    values = [config.api_key or ""]
    for name, value in config.extra_headers.items():
        if any(part in name.lower() for part in _SECRET_HEADERS):
            values.append(value)
            values.append(value.rpartition(" ")[2])  # without the word before it, such as Bearer
    return tuple(dict.fromkeys(value for value in values if len(value) >= _SHORTEST_SECRET))


def masked(text: str, hidden: Sequence[str]) -> str:
    """The text without the secrets in it."""
    for secret in hidden:
        if secret in text:
            text = text.replace(secret, MASK)
    return text


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
