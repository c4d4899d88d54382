"""The functions for most programs. They need no engine of your own.

`generate` and similar functions call the default engine's method of the same name. `costs` and `reprice` start no
engine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Unpack

import msgspec

from callboard.adapters import ContentBlock
from callboard.bus import CallboardError, ConfigurationError
from callboard.bus.clock import read_moment
from callboard.tracestore import CallFilter, CostRow, PriceTable, RepriceReport, Store

from .conversation.results import GenerateResult
from .current_prices import load_prices
from .engine import Engine
from .generation.arguments import Arguments
from .generation.readers import OnUsage
from .generation.streaming import StreamResult
from .routing.model_choice import Model
from .runtime.process import engines
from .stores import existing_store, place_of, store_to_read

if TYPE_CHECKING:
    from .operations.embeddings_and_images import EmbeddingOptions, EmbeddingResult
    from .operations.plain_calls import Models
    from .sync import SyncHost, SyncStreamResult


# --- The default engine ---

_chosen: Engine | None = None
_of_loops: dict[asyncio.AbstractEventLoop, Engine] = {}


def default_engine() -> Engine:
    """The engine that `generate` and similar functions use without ``engine=``: the engine of
    `set_default_engine`, or else the running loop's own engine, made with `Engine.from_env()`.

    Raises:
        CallboardError: No event loop runs here.
        ConfigurationError: The configuration is wrong.
    """
    if _chosen is not None:
        return _chosen
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise CallboardError(
            "no event loop is running here, so there is no engine to use. Call this in a coroutine, or "
            "use generate_sync(), stream_sync() and the other sync functions"
        ) from None
    engine = _of_loops.get(loop)
    if engine is None or engine.closed:
        for old in [old for old in _of_loops if old.is_closed()]:
            del _of_loops[old]
        engine = _of_loops[loop] = Engine.from_env()
    return engine


def set_default_engine(engine: Engine | None) -> None:
    """Use an engine as the default of the whole process. The caller closes it.

    Args:
        engine: The engine; None restores a separate engine for each loop.
    """
    global _chosen
    _chosen = engine


def engine_on(host: SyncHost, engine: Engine | None) -> Engine:
    """The engine that a sync function uses. It is closed when the program ends. Called on the host's loop."""
    used = engine or default_engine()
    host.keep(used._runtime.host)
    return used


async def generate(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    engine: Engine | None = None,
    **arguments: Unpack[Arguments],
) -> GenerateResult:
    """Call a model, run the tools that it calls, and return the answer.

    If the task that awaits this is cancelled, the call is cancelled. An exception has the partial reply
    (`content`, `usage`) and the finished part of the turn (`.turn`, with `steps`, `cost` and `messages`).

    Args:
        model: Any of a model's names, several names in order, a `ModelChoice`, or None for the configured default.
        prompt: Text or content blocks. For a whole conversation, pass ``messages=[...]`` instead.
        engine: The engine to use; None uses `default_engine()`.
        arguments: The fields of `Arguments` (system_prompt, tools, tags, provider, timeout) and of `TurnOptions`
            (max_output_tokens, max_tool_rounds, signal and so on).

    Raises:
        AdapterError: A call failed. Its subclasses have the reason.
        ConfigurationError: The configuration, the model or an option is wrong.
        CallboardError: The arguments can't be combined.
        TypeError: The argument does not exist, or has a wrong type.
    """
    return await (engine or default_engine()).generate(model, prompt, **arguments)


def stream(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    engine: Engine | None = None,
    on_usage: OnUsage | None = None,
    **arguments: Unpack[Arguments],
) -> StreamResult:
    """Like `generate`, but streamed; see `StreamResult`. Nothing is sent before the first read.

    Reading raises the exceptions of `generate`. Arguments that conflict raise CallboardError or TypeError
    immediately.

    Args:
        model: As in `generate`.
        prompt: As in `generate`.
        engine: As in `generate`.
        on_usage: A function that receives the usage so far, every few deltas and after every step. It is called
            only while the result is iterated.
        arguments: As in `generate`.
    """
    return (engine or default_engine()).stream(model, prompt, on_usage=on_usage, **arguments)


def generate_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    engine: Engine | None = None,
    **arguments: Unpack[Arguments],
) -> GenerateResult:
    """Run `generate` without an event loop. Ctrl-C cancels the call.

    One thread of the process does the work. Async tools also run on its loop. Its engine is closed when the
    program ends. In a thread with a running event loop, the function works, but warns with RuntimeWarning, because
    it blocks that loop. The exceptions of `generate` are raised here, too.

    Args:
        model: As in `generate`.
        prompt: As in `generate`.
        engine: An engine that only the sync functions use; None uses the `default_engine()` of their thread.
        arguments: As in `generate`.

    Raises:
        WrongLoop: The engine belongs to another loop, or an async tool calls this, which would be a deadlock.
    """
    from .sync import sync_host

    host = sync_host()

    async def ask() -> GenerateResult:
        return await engine_on(host, engine).generate(model, prompt, **arguments)

    return host.run(ask, name="generate_sync()")


def stream_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    engine: Engine | None = None,
    on_usage: OnUsage | None = None,
    **arguments: Unpack[Arguments],
) -> SyncStreamResult:
    """Run `stream` without an event loop; see `generate_sync` and `SyncStreamResult`.

    `on_usage` is called in the thread ``callboard-sync``.
    """
    from .sync import SyncStreamResult, sync_host

    host = sync_host()

    async def ask() -> StreamResult:
        result = engine_on(host, engine).stream(model, prompt, on_usage=on_usage, **arguments)
        host.close_at_end(result)
        return result

    return SyncStreamResult(host, host.run(ask, name="stream_sync()"))


# --- Embeddings ---


async def embed(
    texts: Sequence[str | Sequence[int]] | str,
    *,
    model: Models = None,
    engine: Engine | None = None,
    **options: Unpack[EmbeddingOptions],
) -> EmbeddingResult:
    """Return the vectors of any number of texts, see `Engine.embed`.

    Args:
        texts: The texts, or one text. A list of integers is a text's tokens. Few providers accept them.
        model: Any of a model's names, or several names of the same model; None uses the configured default.
        engine: The engine to use; None uses `default_engine()`.
        options: The fields of `EmbeddingOptions`, such as ``on_progress``.

    Raises:
        PartialEmbeddingError: Some texts could not be embedded; the exception has the vectors of the others.
        AdapterError: No text could be embedded.
        ConfigurationError: The configuration is wrong, or the vectors of two models can't be compared.
    """
    return await (engine or default_engine()).embed(texts, model=model, **options)


def embed_sync(
    texts: Sequence[str | Sequence[int]] | str,
    *,
    model: Models = None,
    engine: Engine | None = None,
    **options: Unpack[EmbeddingOptions],
) -> EmbeddingResult:
    """Run `embed` without an event loop; see `generate_sync`.

    `on_progress` is called in the thread ``callboard-sync``.

    Args:
        texts: As in `embed`.
        model: As in `embed`.
        engine: As in `generate_sync`.
        options: As in `embed`.
    """
    from .sync import sync_host

    host = sync_host()

    async def ask() -> EmbeddingResult:
        return await engine_on(host, engine).embed(texts, model=model, **options)

    return host.run(ask, name="embed_sync()")


# --- Costs of stored calls ---

Moment: TypeAlias = str | datetime | timedelta
"""A point in time: an aware datetime; a time before now, as a timedelta or as ``"90m"``, ``"24h"``, ``"7d"``,
``"2w"``; or a local time such as ``"2026-07-01"`` or ``"2026-07-01T12:00"``.
"""

Trace: TypeAlias = Store | Path | str
"""A trace: an open store, the path of a trace file, or an address such as ``postgresql://USER@HOST/DATABASE``."""

EVERY_CALL = CallFilter()


async def costs(
    *,
    by: str | Sequence[str] = "model",
    since: Moment | None = None,
    until: Moment | None = None,
    where: CallFilter = EVERY_CALL,
    under: str | None = None,
    trace: Trace | None = None,
) -> list[CostRow]:
    """Sum the usage and cost of stored calls by group, the most expensive group first.

    Args:
        by: The dimension or dimensions to group by: day (UTC), provider, model, session_id, turn_id, root, status,
            served_model, error_class, stop_reason, operation, key, or ``tag:KEY``. ``()`` gives one total.
        since: The earliest start of a call.
        until: The time before which a call started.
        where: More conditions that the calls must meet.
        under: The price version for the costs; None uses the current costs.
        trace: The trace; None uses $CALLBOARD_HOME/trace.db, or ~/.callboard/trace.db without that variable.

    Raises:
        StoreError: There is no trace, or it can't be read.
        ConfigurationError: A moment can't be read.
        ValueError: The dimension is unknown.
    """
    chosen = _within(where, since, until)
    dimensions = (by,) if isinstance(by, str) else tuple(by)
    async with _opened(trace) as store:
        return await store.costs(chosen, dimensions, under=under)


def costs_sync(
    *,
    by: str | Sequence[str] = "model",
    since: Moment | None = None,
    until: Moment | None = None,
    where: CallFilter = EVERY_CALL,
    under: str | None = None,
    trace: Trace | None = None,
) -> list[CostRow]:
    """Run `costs` without an event loop. Arguments, result and exceptions are the same as for `costs`."""
    from .sync import run_sync

    return run_sync(costs(by=by, since=since, until=until, where=where, under=under, trace=trace))


async def reprice(
    prices: PriceTable | Path | str | None = None,
    *,
    discount: Mapping[str, Decimal | int | str] | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    where: CallFilter = EVERY_CALL,
    dry_run: bool = False,
    trace: Trace | None = None,
) -> RepriceReport:
    """Recalculate the costs of stored calls with other prices.

    Unless `dry_run` is set, the result becomes the current cost of each call. The prices of new calls do not
    change. `callboard reprice --undo` reverts the repricing.

    Args:
        prices: A table, or the path of a price file, whose newest table is used. None uses the table of a new
            engine.
        discount: Factors for these prices by ``provider:name``, where ``*`` matches any text: ``{"anthropic:*":
            "0.8"}`` is 20 % off. See `PriceTable.discounted`.
        since: The earliest start of a call.
        until: The time before which a call started.
        where: More conditions that the calls must meet.
        dry_run: Whether to report only.
        trace: The trace, as in `costs`.

    Raises:
        StoreError: There is no trace, or it can't be used.
        ConfigurationError: The prices, a factor or a moment can't be read.
    """
    table = PriceTable.from_yaml(prices) if isinstance(prices, Path | str) else load_prices(prices)
    if discount is not None:
        table = table.discounted(discount)
    chosen = _within(where, since, until)
    async with _opened(trace, writes=not dry_run) as store:
        return await store.reprice(table, where=chosen, dry_run=dry_run)


def reprice_sync(
    prices: PriceTable | Path | str | None = None,
    *,
    discount: Mapping[str, Decimal | int | str] | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    where: CallFilter = EVERY_CALL,
    dry_run: bool = False,
    trace: Trace | None = None,
) -> RepriceReport:
    """Run `reprice` without an event loop. Arguments, result and exceptions are the same as for `reprice`."""
    from .sync import run_sync

    work = reprice(prices, discount=discount, since=since, until=until, where=where, dry_run=dry_run, trace=trace)
    return run_sync(work)


def _within(where: CallFilter, since: Moment | None, until: Moment | None) -> CallFilter:
    """The filter, limited to a period."""
    named = {"since": since, "until": until}
    moments = {name: _moment(moment) for name, moment in named.items() if moment is not None}
    return msgspec.structs.replace(where, **moments)


def _moment(moment: Moment) -> datetime:
    if isinstance(moment, timedelta):
        return datetime.now().astimezone() - moment
    if isinstance(moment, datetime):
        return moment
    try:
        return read_moment(moment)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


@contextlib.asynccontextmanager
async def _opened(trace: Trace | None, *, writes: bool = False) -> AsyncIterator[Store]:
    """The open store of a trace. All ended calls of this process are written to the trace first."""
    if trace is not None and not isinstance(trace, Path | str):
        yield trace
        return
    place = place_of(trace)
    if isinstance(place, Path):
        await engines().flush(place)
    async with await existing_store(place) if writes else store_to_read(place) as store:
        yield store
