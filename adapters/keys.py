"""The keys of an adapter: sources, pools, and pauses after errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import anyio
import msgspec

from callboard.bus.errors import (
    AccessDeniedError,
    AdapterError,
    AuthError,
    ConfigurationError,
    OverloadedError,
    QuotaExceededError,
    RateLimitError,
)

from .config import AdapterConfig, KeySource
from .provider import provider_named, providers
from .transport.addresses import check_key_goes_home
from .transport.transport import fault_of, hide_in_logs, secrets, with_secret

# --- One key ---


class KnownKey(NamedTuple):
    value: str | None
    """The value; None for a server without keys."""
    version: int
    """The number of values that were requested from the source."""


class Key:
    """A key: a fixed value, or a value that a function returns at the first use."""

    def __init__(
        self, adapter: str, name: str | None, key_value: str | KeySource | None, on_value: Callable[[str], object]
    ) -> None:
        self.name = name
        """The name of the key's entry; None for the adapter's own key."""
        self.source: KeySource | None = None if isinstance(key_value, str) else key_value
        """The function that returns the value; None for a value that never changes."""
        self.known = KnownKey(key_value, 0) if isinstance(key_value, str) or key_value is None else None
        """The value; None until requested."""
        self._adapter = adapter
        self._on_value = on_value
        self._asking = anyio.Lock()

    async def get(self) -> KnownKey:
        """Return the value. The first use requests it."""
        return self.known or await self._ask(None)

    async def replaced(self, refused: KnownKey) -> bool:
        """Request a new value for a rejected value. Return whether the values differ. Calls that were rejected
        with the same value share one request.
        """
        if self.source is None:
            return False
        return (await self._ask(refused)).value != refused.value

    async def _ask(self, refused: KnownKey | None) -> KnownKey:
        async with self._asking:
            current = self.known
            # another call has requested the new value
            if self.source is None or (current is not None and current != refused):
                assert current is not None
                return current
            value, fault = await _answer(self.source)
            self._on_value(value)  # masked even if the key can't be sent
            if fault is not None:
                key = "api_key" if self.name is None else f"keys[{self.name!r}]"
                raise AuthError(
                    f"{self._adapter}: can't get a key from {key}: {fault}; check its function or file",
                    provider=self._adapter,
                )
            self.known = KnownKey(value, 1 if current is None else current.version + 1)
            return self.known


async def _answer(source: KeySource) -> tuple[str, str | None]:
    """A function's result, and the reason if it can't be used. Texts of exceptions are left out, because they may
    contain a key.
    """
    try:
        answer = source()
        if inspect.isawaitable(answer):
            answer = await answer
    except Exception as error:
        return "", f"it raised {type(error).__name__}"
    if not isinstance(answer, str):
        return "", f"it returned {type(answer).__name__} instead of text"
    value = answer.strip()
    fault = fault_of(value)
    return value, f"it has {fault}" if fault else None if value else "it is empty"


# --- Pauses of keys after errors ---

REFUSED_US = 600_000_000
"""The length of the pause after the provider rejected a key, in microseconds."""
PAUSE_US = 10_000_000
"""The length of the pause after a rate limit without a hint, in microseconds."""
TRIAL_US = 30_000_000
"""Microseconds after the end of a key's pause during which only one call may try the key."""

MAX_COOLDOWNS = 4096
"""The largest number of recorded pauses. The oldest is dropped first."""

Weight: TypeAlias = Literal["refused", "limited"]


class KeyCooldown(msgspec.Struct, frozen=True):
    """The reason and the end of a key's pause."""

    key: str
    model: str | None
    """The model on the wire; None for all models."""
    weight: Weight
    """``refused``: the key was rejected. ``limited``: a rate limit or quota applies."""
    until_us: int
    """The end of the pause, in microseconds since the epoch."""
    reason: str

    def in_words(self) -> str:
        return f"its key {self.key!r} was {self.weight} ({self.reason})"


class KeyCooldowns:
    """The pauses of an adapter's named keys."""

    def __init__(self) -> None:
        self._cooldowns: dict[tuple[str, str | None], KeyCooldown] = {}

    def cooldown(self, key: str, model: str, now_us: int) -> KeyCooldown | None:
        """The longest pause of a key for a model; None for a key that may be used or tried."""
        found = [cooldown for cooldown in self._of(key, model) if cooldown.until_us > now_us]
        return max(found, key=lambda cooldown: cooldown.until_us, default=None)

    def begin(self, key: str, model: str, now_us: int) -> None:
        """Record the start of a call with a key. If the key's pause has just ended, this call tests the key, and
        the key stays paused for other calls until the test ends.
        """
        for cooldown in self._of(key, model):
            if cooldown.until_us <= now_us:
                self._cooldowns[cooldown.key, cooldown.model] = msgspec.structs.replace(
                    cooldown, until_us=now_us + TRIAL_US
                )

    def taken(self, key: str, model: str) -> None:
        """Record that the provider accepted a key for a model."""
        if self._cooldowns:
            self._cooldowns.pop((key, None), None)
            self._cooldowns.pop((key, model), None)

    def failed(self, key: str, model: str, error: AdapterError, now_us: int) -> bool:
        match error:
            case AccessDeniedError():
                cooldown = KeyCooldown(key, model, "refused", now_us + REFUSED_US, type(error).__name__)
            case AuthError() | QuotaExceededError():
                cooldown = KeyCooldown(key, None, "refused", now_us + REFUSED_US, type(error).__name__)
            case RateLimitError() if not isinstance(error, OverloadedError):  # an overload is not about the key
                hint = error.retry_after_seconds
                pause_us = PAUSE_US if hint is None else round(max(hint, 0.0) * 1e6)
                cooldown = KeyCooldown(key, model, "limited", now_us + pause_us, type(error).__name__)
            case _:
                return False
        self._cooldowns.pop((cooldown.key, cooldown.model), None)
        self._cooldowns[cooldown.key, cooldown.model] = cooldown
        while len(self._cooldowns) > MAX_COOLDOWNS:
            del self._cooldowns[next(iter(self._cooldowns))]
        return True

    def _of(self, key: str, model: str) -> list[KeyCooldown]:
        if not self._cooldowns:
            return []
        return [self._cooldowns[at] for at in ((key, None), (key, model)) if at in self._cooldowns]


# --- Choosing from a pool ---

MAX_SESSIONS = 4096
"""The largest number of sessions with a recorded key. The least recently used is dropped first."""


class KeyPool:
    """A pool of keys, any of which a call may use."""

    def __init__(self, names: Sequence[str], cooldowns: KeyCooldowns) -> None:
        self.names = tuple(names)
        self._cooldowns = cooldowns
        self._turns = dict.fromkeys(self.names, 0)
        self._turn = 0
        self._of_session: dict[str, str] = {}

    def choose(self, session: str, model: str, now_us: int, *, without: Collection[str] = ()) -> str | None:
        """Choose a key for a call. Keys that the call has already tried (`without`) are excluded.

        If all keys are paused, return the key whose pause ends first, or None if the call has tried a key.
        """
        untried = [name for name in self.names if name not in without]
        cooldowns = {name: self._cooldowns.cooldown(name, model, now_us) for name in untried}
        ends = {name: 0 if each is None else each.until_us for name, each in cooldowns.items()}
        ready = [name for name, end in ends.items() if end == 0]
        if not ready and (without or not ends):
            return None
        last_name = self._of_session.get(session)
        if last_name in ready:
            name = last_name
        elif ready:
            name = min(ready, key=self._turns.__getitem__)
        else:
            name = min(ends, key=ends.__getitem__)
        self._note(name, session)
        return name

    def _note(self, name: str, session: str) -> None:
        self._turn += 1
        self._turns[name] = self._turn
        if session:
            self._of_session.pop(session, None)
            self._of_session[session] = name
            if len(self._of_session) > MAX_SESSIONS:
                del self._of_session[next(iter(self._of_session))]


# --- All keys of an adapter ---


class Keyring:
    """The keys of an adapter, by name.

    Raises:
        ConfigurationError: `key_pool` has a name that is not in `keys`.
    """

    def __init__(self, adapter: str, config: AdapterConfig) -> None:
        self.secrets = secrets(config)
        """The values to mask. Keys from functions are added when they are known."""
        self.cooldowns = KeyCooldowns()
        self.pool = KeyPool(tuple(dict.fromkeys(config.key_pool)), self.cooldowns) if config.key_pool else None
        """The keys for calls without a named key."""
        self._adapter = adapter
        self._named = {name: Key(adapter, name, source, self._learn) for name, source in config.keys.items()}
        for name in config.key_pool:
            self.named(name)
        self.own = self._make_own(config)
        """The key of requests outside of calls."""
        self.unnamed = self.own if self.pool is None and (config.api_key is not None or not self._named) else None
        """The key for calls that name no key; None if there is a pool, or if every call must name a key."""
        hide_in_logs(self, self.secrets)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of keys that calls may use."""
        return tuple(self._named)

    def check(self, name: str | None) -> None:
        """Check that a call may use a key."""
        if name is not None:
            self.named(name)
        elif self.unnamed is None and self.pool is None:
            raise ConfigurationError(
                f"{self._adapter} has only named keys: pass key=; {self._names_text()}. Or set api_key or "
                f"key_pool for calls without key="
            )

    def named(self, name: str) -> Key:
        key = self._named.get(name)
        if key is None:
            raise ConfigurationError(f"{self._adapter} has no key {name!r}: {self._names_text()}")
        return key

    def choose(
        self, name: str | None, session: str, model: str, now_us: int, *, without: Collection[str] = ()
    ) -> Key | None:
        if name is None and self.unnamed is not None:
            return self.unnamed
        self.check(name)
        if name is None and self.pool is not None:
            name = self.pool.choose(session, model, now_us, without=without)
            if name is None:
                return None
        assert name is not None  # without a pool, `check` has rejected an unnamed call
        self.cooldowns.begin(name, model, now_us)
        return self._named[name]

    def cooldown(self, name: str | None, model: str, now_us: int) -> KeyCooldown | None:
        """The pause that blocks a call: the pause of its own key, or of the whole pool."""
        if name is not None:
            return self.cooldowns.cooldown(name, model, now_us)
        if self.pool is None:
            return None
        found: list[KeyCooldown] = []
        for each in self.pool.names:
            cooldown = self.cooldowns.cooldown(each, model, now_us)
            if cooldown is None:
                return None
            found.append(cooldown)
        return min(found, key=lambda cooldown: cooldown.until_us)

    def _make_own(self, config: AdapterConfig) -> Key:
        first = next(iter((*config.key_pool, *config.keys)), None)
        if config.api_key is None and first is not None:
            return self._named[first]
        return Key(self._adapter, None, config.api_key, self._learn)

    def _names_text(self) -> str:
        return f"its keys are {', '.join(sorted(self._named))}" if self._named else "it has no named keys"

    def _learn(self, value: str) -> None:
        self.secrets = with_secret(self.secrets, value)
        hide_in_logs(self, self.secrets)


def address_variable(kind: str, key_variable: str | None, environ: Mapping[str, str]) -> str | None:
    """The environment variable of an adapter's address, such as ``ANTHROPIC_BASE_URL``."""
    provider = provider_named(kind)
    variable = None if provider is None else provider.base_url_variable
    if provider is None or variable is None or not environ.get(variable):
        return None
    homes = (each.home for each in providers() if each.base_url_variable == variable and each.home)
    try:
        check_key_goes_home(kind, key_variable, f"https://{next(homes)}", of_many=provider.home is None)
    except ConfigurationError:
        return None
    return variable
