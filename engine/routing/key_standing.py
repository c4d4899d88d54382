"""The availability of a model for a call that uses a certain key: the model's, unless the key rests."""

from __future__ import annotations

from callboard.adapters.contract import ProviderAdapter
from callboard.adapters.keys.keyring import Keyring
from callboard.bus import ConfigurationError

from .availability import Standing


def standing_of_key(
    standing: Standing, adapter: ProviderAdapter, key: str | None, wire_model: str, now_us: int
) -> Standing:
    """The availability of a model for a call with a key.

    Args:
        standing: The availability of the model, whatever the key.
        adapter: The adapter of the model.
        key: The name of the key; None leaves it to the adapter.
        wire_model: The model's name at its provider.
        now_us: The time, in microseconds since the epoch.

    Raises:
        ConfigurationError: The adapter has no key of that name, or the call must name one.
    """
    keys = getattr(adapter, "keys", None)
    if not isinstance(keys, Keyring):  # an adapter of another kind sends no key
        if key is not None:
            raise ConfigurationError(f"{adapter.name} has no key {key!r}: it has no keys with names")
        return standing
    if key is None and keys.unnamed is not None:
        return standing
    keys.check(key)
    rest = keys.rest(key, wire_model, now_us)
    if rest is None or standing.kind == "closed":
        return standing
    wait = max(rest.until_us - now_us, 0) / 1e6
    return Standing("closed" if rest.weight == "refused" else "later", rest.in_words(), wait)
