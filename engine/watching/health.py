"""The findings of `Engine.health()` and `callboard doctor`: configuration, keys, providers, store.

Every check only reads. It makes no paid call, creates no file and starts no local model. A failed check states
what to do. Its text never contains a key.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from callboard import tracestore
from callboard.adapters import ProviderAdapter
from callboard.adapters.health import AdapterHealth, ChecksHealth
from callboard.adapters.provider import provider_named
from callboard.adapters.transport.transport import given_keys, masked
from callboard.bus import CallboardError, Clock, ConfigurationError, StoreError
from callboard.tracestore import Store, WriterStatistics
from callboard.tracestore.health import FileFacts, file_facts
from callboard.tracestore.reports import Check, HealthReport, StoreCondition, report_of

from ..keys import keys_file, read_keys
from ..models.configured import FROM_ENVIRONMENT, read_models_yaml
from ..models.entries import AdapterEntry
from ..models.registry import ModelRegistry
from ..runtime.runtime import Runtime
from ..stores import server_store, store_to_read
from .snapshots import live_adapter

FILE_SECONDS = 30.0
"""The time limit in seconds for reading the trace file. A larger file is checked in part."""

LEAST_FREE_BYTES = 100 * 1024 * 1024

_OTHER_FILE = "If the file is older, do that. Otherwise move it away, or choose another trace file."
_LISTED = "Follow the advice for one of them."
_FIRST_STEP = (
    "Store the key of a provider, such as `callboard keys set anthropic`, "
    "or install a local model, as described at provider:local-chat."
)

_CLOSE_SECONDS = 2.0
_LONGEST_DETAIL = 400


async def examine(
    runtime: Runtime, writer: WriterStatistics | None, *, offline: bool, time_limit: float
) -> HealthReport:
    """Make all checks of an engine. It need not be running."""
    live = {name: live_adapter(running.ref) for name, running in runtime.adapters.running.items()}
    surroundings = Providers(runtime.registry, live, runtime.clock, offline=offline, time_limit=time_limit)
    checks = [check_configuration(runtime.registry, again=runtime.host.started), *check_key_file()]
    checks += await surroundings.check()
    checks += await check_store(runtime.store, writer)
    checks += await runtime.cluster.checks()
    return report_of(checks)


def check_configuration(registry: ModelRegistry, *, again: bool = False) -> Check:
    """Check the loaded configuration. With `again`, also check that its file can still be loaded."""
    name, path = "configuration", Path(registry.source)
    try:
        if again and path.is_file():
            read_models_yaml(path)
        if registry.default_model is not None:
            registry.resolve(registry.default_model)
    except ConfigurationError as error:
        return unreadable(error, name)
    adapters, models = len(registry.adapters), len(registry.models)
    if not adapters:
        return Check(name, False, f"no adapters in {registry.source}", "List at least one under `adapters:`.")
    message = f"{_counted(adapters, 'adapter')} and {_counted(models, 'model')}, from {registry.source}"
    return Check(name, True, message)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def check_key_file() -> list[Check]:
    """Check that the keys of `callboard keys` can be read, and only by their owner. Without a file, the result is
    empty.
    """
    stored = read_keys(keys_file())
    if stored.fault is not None:
        return [Check("keys", False, f"{stored.path} is ignored: {stored.fault}", stored.fix)]
    return [Check("keys", True, f"{len(stored.keys)} in {stored.path}")] if stored.exists else []


def unreadable(error: ConfigurationError, name: str = "configuration") -> Check:
    """The check of a configuration that can't be used."""
    return Check(name, False, str(error), "Correct that place.")


# --- Providers ---


class Providers:
    """Checks all adapters of a registry."""

    def __init__(
        self,
        registry: ModelRegistry,
        live: dict[str, ProviderAdapter | None],
        clock: Clock,
        *,
        offline: bool,
        time_limit: float,
    ) -> None:
        self._registry = registry
        self._live = live
        self._clock = clock
        self._offline = offline
        self._time_limit = time_limit
        self._usable: set[str] = set()

    async def check(self) -> list[Check]:
        """The checks, in the order of the registry. Providers are queried concurrently."""
        found: dict[str, list[Check]] = {}

        async def look(entry: AdapterEntry) -> None:
            found[entry.name] = [self._masked(check) for check in await self._adapter(entry)]

        async with anyio.create_task_group() as group:
            for entry in self._registry.adapters.values():
                group.start_soon(look, entry)
        checks = [check for name in self._registry.adapters for check in found[name]]
        return [*checks, self._any_usable()]

    def _any_usable(self) -> Check:
        usable = [name for name in self._registry.adapters if name in self._usable]
        if usable:
            unasked = " (hosted ones were not contacted)" if self._offline else ""
            return Check("usable", True, f"{', '.join(usable)}{unasked}")
        return Check("usable", False, "no model can be called yet", _LISTED if self._chosen else _FIRST_STEP)

    async def _adapter(self, entry: AdapterEntry) -> list[Check]:
        key = self._key(entry)
        if entry.missing_key is not None:
            return [key]
        first = [key]
        if entry.address_from is not None:  # the address comes from the environment
            address = f"{entry.config.base_url}, from {entry.address_from}"
            first.append(Check(f"address:{entry.name}", True, address))
        live = self._live.get(entry.name)
        try:
            adapter = live or entry.create(self._clock)
        except Exception as error:  # a host's own adapter may raise anything
            where = f"adapters.{entry.name} in {self._registry.source}"
            return [*first, Check(f"adapter:{entry.name}", False, _error_text(error), f"Correct {where}.")]
        try:
            return [*first, *await self._provider(entry, adapter)]
        finally:
            if adapter is not live and not entry.shared:
                with anyio.CancelScope(shield=True, deadline=anyio.current_time() + _CLOSE_SECONDS):
                    await adapter.close()

    def _key(self, entry: AdapterEntry) -> Check:
        name, missing = f"key:{entry.name}", entry.missing_key
        if missing is None:
            if not entry.config.api_key:
                return Check(name, True, "none, and none is needed")
            return Check(name, True, f"set, from {entry.key_from}" if entry.key_from else "set")
        if not entry.offered:
            detail = f"not_configured: {missing} is not set"
            keep = f"Set {missing} (`callboard keys set {missing}` stores it)"
            fix = f"{keep}, or take {entry.name} out of {self._registry.source}."
            return Check(name, False, detail, fix)
        fix = f"Set {missing}, or `callboard keys set {missing}`, to use {entry.name}."
        return Check(name, True, f"not used: {missing} is not set", fix, unused=True)

    @property
    def _chosen(self) -> bool:
        """Whether the adapters were listed explicitly. Each of them should then work."""
        return self._registry.source != FROM_ENVIRONMENT

    async def _provider(self, entry: AdapterEntry, adapter: ProviderAdapter) -> list[Check]:
        name = f"provider:{entry.name}"
        if self._offline and not _runs_here(entry):
            self._usable.add(entry.name)
            return []
        if not isinstance(adapter, ChecksHealth):
            self._usable.add(entry.name)
            return [Check(name, True, "not contacted: this adapter has no health check")]
        health = await self._ask(adapter)
        if health.ok:
            self._usable.add(entry.name)
        elif entry.offered and not entry.config.api_key:
            return [Check(name, True, f"not used: {health.detail}", health.fix, unused=True)]
        fix = health.fix or ("" if health.ok else f"Check adapters.{entry.name} in {self._registry.source}.")
        if health.key_refused and entry.key_from is not None:
            fix += f" The refused one is {entry.key_from}."
        return [Check(name, health.ok, health.detail, fix)]

    async def _ask(self, adapter: ChecksHealth) -> AdapterHealth:
        answer: AdapterHealth | bool | None = None
        try:
            with anyio.move_on_after(self._time_limit) as scope:
                answer = await adapter.health_check()
        except Exception as error:
            return AdapterHealth(False, f"its health check failed: {_error_text(error)}")
        if scope.cancelled_caught:
            message = f"no answer within {self._time_limit:g} s"
            return AdapterHealth(False, message, "Check the network and base_url; try again.")
        if isinstance(answer, AdapterHealth):
            return answer
        healthy = answer is not False  # the default implementation returns None
        return AdapterHealth(healthy, "its health check passed" if healthy else "its health check failed")

    def _masked(self, check: Check) -> Check:
        """The check with all keys of the configuration masked."""
        keys = [key for entry in self._registry.adapters.values() for key in given_keys(entry.config)]
        return msgspec.structs.replace(check, detail=masked(check.detail, keys), fix=masked(check.fix, keys))


def _runs_here(entry: AdapterEntry) -> bool:
    provider = provider_named(entry.type)
    return provider is not None and provider.runs_here


def _error_text(error: Exception) -> str:
    text = str(error) if isinstance(error, CallboardError) else f"{type(error).__name__}: {error}"
    return text[:_LONGEST_DETAIL]


# --- The store ---


async def check_store(store: Store | None, writer: WriterStatistics | None = None) -> list[Check]:
    """The checks of the trace and its disk. The trace is read over a separate connection."""
    if store is None:
        return [Check("store", True, "no trace is kept")]
    on_server = server_store(store)
    checks = await (_in_file(store.path) if on_server is None else on_server.checks())
    if on_server is None and store.path.exists() and checks[0].ok:
        checks += await tracestore.TraceShipper.checks(store.path)
    if writer is not None:
        checks.append(_writer(writer))
    return checks


async def _in_file(path: Path) -> list[Check]:
    try:
        facts = await anyio.to_thread.run_sync(file_facts, path)
    except OSError as error:
        return [Check("store", False, f"{path}: {error.strerror or error}", "Make its folder reachable.")]
    locking = Check("store:locking", True, facts.locking)
    return [*await _content(facts), _writable(facts), _private(facts), locking, _disk(facts)]


async def _content(facts: FileFacts) -> list[Check]:
    path = facts.path
    if not facts.exists:
        return [Check("store", True, f"{path} does not exist yet; the first call creates it")]
    if not facts.size:
        return [Check("store", True, f"{path} is empty; the first call fills it")]
    try:
        async with store_to_read(path, take_in=False) as store:
            journal = _journal(await store.journal_mode())
            checks = [await _quick_check(store, facts), journal]
            if checks[0].ok:
                found = await store.condition()
                checks += [*found.leftovers("this file"), _space(found)]
            return checks
    except StoreError as error:
        return [Check("store", False, str(error), _OTHER_FILE)]


async def _quick_check(store: Store, facts: FileFacts) -> Check:
    size = f"{facts.size / 1_000_000:,.1f} MB"
    try:
        wrong = await store.check(seconds=FILE_SECONDS)
    except TimeoutError:
        return Check("store", True, f"{facts.path} opens, {size}; too large to check in {FILE_SECONDS:g} s")
    if not wrong:
        return Check("store", True, f"{facts.path} opens and passed its integrity check, {size}")
    more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
    return Check(
        "store",
        False,
        f"{facts.path} is damaged: {wrong[0][:_LONGEST_DETAIL]}{more}",
        "Stop all programs that write to it, keep a copy, and recover it with: sqlite3 FILE .recover",
    )


def _journal(mode: str) -> Check:
    if mode == "wal":
        return Check("store:journal", True, "write-ahead log")
    return Check(
        "store:journal",
        False,
        f"journal mode {mode!r} instead of a write-ahead log, as on a network share: safe but slow",
        "Put the trace file on a local disk.",
    )


def _space(found: StoreCondition) -> Check:
    share = found.free_bytes / found.file_bytes if found.file_bytes else 0.0
    detail = (
        f"{found.file_bytes / 1_000_000:,.1f} MB, of which {found.free_bytes / 1_000_000:,.1f} MB are free pages"
    )
    fix = "They will be reused. `callboard prune --vacuum` returns them to the disk." if share > 0.25 else ""
    return Check("store:space", True, detail, fix)


def _writable(facts: FileFacts) -> Check:
    if facts.writable:
        return Check("store:writable", True, f"{facts.path if facts.exists else facts.folder}")
    return Check(
        "store:writable",
        False,
        f"{facts.path} can't be written, or its folder can't be written",
        f"Give this user write access to it and to {facts.folder}, or choose another trace file.",
    )


def _private(facts: FileFacts) -> Check:
    shared = ", ".join(str(path) for path in facts.open_to_others)
    if shared:
        import shlex

        fix = f"chmod 600 {shlex.quote(str(facts.path))}*"  # SQLite creates its other files with the same mode.
        return Check("store:private", False, f"other users may open {shared}", fix)
    return Check("store:private", True, "mode 0600" if facts.exists else "will be created with mode 0600")


def _disk(facts: FileFacts) -> Check:
    free = f"{facts.free_bytes / 1_000_000_000:,.1f} GB free"
    if facts.free_bytes >= LEAST_FREE_BYTES:
        return Check("store:disk", True, free)
    return Check("store:disk", False, f"only {free}", f"Free space on the disk of {facts.folder}.")


def _writer(writer: WriterStatistics) -> Check:
    lost = f", {writer.lost} lost" if writer.lost else ""
    detail = f"{writer.state}: {writer.committed} events committed, {writer.waiting} wait{lost}"
    if writer.state == "ok" and not writer.lost and writer.unsecured is None:
        return Check("store:writer", True, detail)
    reason = "".join(f" ({why})" for why in (writer.reason, writer.unsecured) if why)
    return Check(
        "store:writer",
        False,
        detail + reason,
        "Correct the problem. The waiting events are then written automatically.",
    )
