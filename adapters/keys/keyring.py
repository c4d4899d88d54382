"""All keys of one adapter, by name, and the one that an attempt uses."""

from __future__ import annotations

from collections.abc import Collection

from callboard.bus.errors import ConfigurationError

from ..config import AdapterConfig
from ..transport.key_masking import hide_in_logs, secrets, with_secret
from .key import Key
from .pool import KeyPool
from .rests import KeyRest, KeyRests


class Keyring:
    """The keys of an adapter. `secrets` holds what must not be seen: it grows as keys come.

    Args:
        adapter: The adapter's name.
        config: The adapter's configuration.

    Raises:
        ConfigurationError: `key_pool` names a key that isn't among `keys`.
    """

    def __init__(self, adapter: str, config: AdapterConfig) -> None:
        self.secrets = secrets(config)
        """The values that must not be seen."""
        self.rests = KeyRests()
        """The named keys that rest."""
        self.pool = KeyPool(tuple(dict.fromkeys(config.key_pool)), self.rests) if config.key_pool else None
        """The keys over which calls are spread that name none."""
        self._adapter = adapter
        self._named = {name: Key(adapter, name, given, self._learn) for name, given in config.keys.items()}
        for name in config.key_pool:
            self.named(name)
        self.own = self._own(config)
        """The key of questions beside the calls."""
        self.unnamed = self.own if self.pool is None and (config.api_key is not None or not self._named) else None
        """The key of calls that name none; None if a pool has it, or if each call must name its own."""
        hide_in_logs(self, self.secrets)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the keys that a call may name."""
        return tuple(self._named)

    def check(self, name: str | None) -> None:
        """Check that a call may use a key.

        Args:
            name: The name of the key; None for a call that names none.

        Raises:
            ConfigurationError: There is no such key, or the call must name one.
        """
        if name is not None:
            self.named(name)
        elif self.unnamed is None and self.pool is None:
            raise ConfigurationError(
                f"{self._adapter} has keys with names only: say key=; {self._known()}; or give it an "
                "api_key or a key_pool for calls that name none"
            )

    def named(self, name: str) -> Key:
        """The key of a name.

        Raises:
            ConfigurationError: There is none.
        """
        key = self._named.get(name)
        if key is None:
            raise ConfigurationError(f"{self._adapter} has no key {name!r}: {self._known()}")
        return key

    def choose(
        self, name: str | None, session: str, model: str, now_us: int, *, without: Collection[str] = ()
    ) -> Key | None:
        """The key of an attempt.

        Args:
            name: The name that the call says; None leaves it to the adapter.
            session: The session's id; empty for a call without a session.
            model: The model on the wire.
            now_us: The time, in microseconds since the epoch.
            without: The keys that the call has tried.

        Returns:
            The key; None if the call has tried all that are ready.

        Raises:
            ConfigurationError: As in `check`.
        """
        if name is None and self.unnamed is not None:
            return self.unnamed
        self.check(name)
        if name is None and self.pool is not None:
            name = self.pool.choose(session, model, now_us, without=without)
            if name is None:
                return None
        assert name is not None  # `check` refuses it without a pool
        self.rests.begin(name, model, now_us)
        return self._named[name]

    def rest(self, name: str | None, model: str, now_us: int) -> KeyRest | None:
        """The rest that keeps a call from being served: of its own key, or of the whole pool.

        Args:
            name: The name that the call says; None leaves it to the adapter.
            model: The model on the wire.
            now_us: The time, in microseconds since the epoch.
        """
        if name is not None:
            return self.rests.rest(name, model, now_us)
        if self.pool is None:
            return None
        found: list[KeyRest] = []
        for each in self.pool.names:
            rest = self.rests.rest(each, model, now_us)
            if rest is None:
                return None
            found.append(rest)
        return min(found, key=lambda rest: rest.until_us)

    def _own(self, config: AdapterConfig) -> Key:
        first = next(iter((*config.key_pool, *config.keys)), None)
        if config.api_key is None and first is not None:
            return self._named[first]
        return Key(self._adapter, None, config.api_key, self._learn)

    def _known(self) -> str:
        return f"its keys are {', '.join(sorted(self._named))}" if self._named else "it has no keys with names"

    def _learn(self, value: str) -> None:
        self.secrets = with_secret(self.secrets, value)
        hide_in_logs(self, self.secrets)
