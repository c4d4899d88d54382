"""Calls without a session as methods of the engine, and more readers of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from callboard.adapters import CanonicalRequest, CanonicalResponse, ContentBlock
from callboard.adapters.replies.whole import spelled_out
from callboard.bus import StreamReader
from callboard.bus.streams.events import TurnEvent
from callboard.bus.values.base import Json
from callboard.tracestore import CallFilter, PriceTable, RepriceReport, RepriceRun

from .conversation.results import GenerateResult
from .generation.arguments import Arguments, complete, generate_on, new_turn, turn_of
from .generation.readers import OnUsage
from .generation.streaming import AttachedView, StreamResult
from .routing.model_choice import Model
from .runtime.alone import ReaderArguments
from .runtime.runtime import Runtime

if TYPE_CHECKING:
    from .generation.object_stream import ObjectStream
    from .generation.objects import ObjectArguments, ObjectResult


class GenerationMethods:
    """The methods of `Engine` for conversations without a session."""

    _runtime: Runtime

    async def generate(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        **arguments: Unpack[Arguments],
    ) -> GenerateResult:
        """Call a model, run the tools that it calls, and return the final reply; see the function `generate`."""
        return await generate_on(self._runtime, model, prompt, **arguments)

    @overload
    def stream(
        self,
        model: CanonicalRequest,
        /,
        *,
        tags: Mapping[str, str] | None = None,
        on_usage: OnUsage | None = None,
    ) -> StreamResult: ...

    @overload
    def stream(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        on_usage: OnUsage | None = None,
        **arguments: Unpack[Arguments],
    ) -> StreamResult: ...

    def stream(
        self,
        model: CanonicalRequest | Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        on_usage: OnUsage | None = None,
        **arguments: Unpack[Arguments],
    ) -> StreamResult:
        """Like `generate`, but yields the reply as it arrives; see the function `stream`.

        For a `CanonicalRequest`, it streams the reply that `complete` returns; no tools are run.

        Raises:
            TypeError: An argument can't be combined with a request.
        """
        if isinstance(model, CanonicalRequest):
            if prompt is not None or arguments.keys() - {"tags"}:
                raise TypeError(
                    "a CanonicalRequest is complete. With it, only these arguments are allowed: tags=, on_usage="
                )
            turn = turn_of(self._runtime, model, tags=arguments.get("tags"), streamed=True)
        else:
            turn = new_turn(self._runtime, model, prompt, streamed=True, **arguments)
        return StreamResult(self._runtime, turn, on_usage=on_usage)

    async def complete(
        self, request: CanonicalRequest, *, tags: Mapping[str, str] | None = None
    ) -> CanonicalResponse:
        """One reply to a request, without a session. It is routed, traced and priced, and no tools are run.

        It raises the exceptions of `Session.send`.

        Args:
            request: The request. It keeps its ids, unless they are empty. Its `session_id` is the session of the
                call in the trace, which need not exist.
            tags: The tags of the call, for the trace; never sent.
        """
        return await complete(self._runtime, request, tags=tags)

    @overload
    def attach(
        self,
        stream_id: str,
        *,
        from_seq: int | Literal["tail"] = 0,
        coalesce: bool = False,
        min_interval: float = 0.0,
        view: Literal[False] = False,
        owner: str | None = None,
        any_owner: bool = False,
    ) -> StreamReader[TurnEvent]: ...

    @overload
    def attach(
        self,
        stream_id: str,
        *,
        coalesce: bool = False,
        min_interval: float = 0.0,
        view: Literal[True],
        owner: str | None = None,
        any_owner: bool = False,
    ) -> AttachedView: ...

    def attach(
        self,
        stream_id: str,
        *,
        from_seq: int | Literal["tail"] = 0,
        coalesce: bool = False,
        min_interval: float = 0.0,
        view: bool = False,
        owner: str | None = None,
        any_owner: bool = False,
    ) -> StreamReader[TurnEvent] | AttachedView:
        """Add one more reader to a turn's stream. Readers that attach or leave don't affect the turn.

        If a session or a call has the tag ``owner``, only a reader with the same `owner` finds its streams. For
        any other reader, the stream is unknown. Set the tag if users of a web application send stream ids, and
        pass the id of the request's user as `owner`.

        Folded messages arrive as whole messages, with their text in one piece, if the reader starts from 0. A
        reader that continues after earlier events gets a StreamReset instead.

        In a cluster, the turn may run on any node. If this node doesn't have the stream, the first read searches
        for it, and raises the errors listed here. If the turn's node dies, the stream ends when its death is
        certain.

        Args:
            stream_id: The id of the stream.
            from_seq: The seq of the first event to read, from 0; ``"tail"`` for the events from now on.
            coalesce: Whether to merge adjacent deltas of one block that are read together.
            min_interval: The minimum number of seconds between two batches of events.
            view: Whether to yield the events of `stream`, with a start and an end for everything, and a
                `text_stream`. Such a reader starts at the first event.
            owner: The value that the tag ``owner`` of the stream's session or call must have. None means a stream
                without that tag.
            any_owner: Whether to read the stream of any owner. Set it only for the operator, not for users.

        Raises:
            UnknownStream: The turn ended too long ago, or the stream has another owner.
            ValueError: `from_seq` is after the end, or is combined with `view`.
            WrongLoop: The engine belongs to another event loop.
        """
        if view:
            if from_seq != 0:
                raise ValueError("a view starts at the first event: leave out from_seq= or view=")
            return AttachedView(
                self.attach(
                    stream_id, coalesce=coalesce, min_interval=min_interval, owner=owner, any_owner=any_owner
                )
            )
        runtime = self._runtime
        runtime.host.require_loop()
        arguments: ReaderArguments = {
            "from_seq": from_seq,
            "coalesce": coalesce,
            "min_interval": min_interval,
            "owner": owner,
            "any_owner": any_owner,
        }
        elsewhere = runtime.cluster.streams.attach(stream_id, runtime.host.start, **arguments)
        if elsewhere is not None:
            return elsewhere
        return runtime.streams.attach(stream_id, unfold=spelled_out, **arguments)


T = TypeVar("T")


class ObjectMethods:
    _runtime: Runtime

    @overload
    async def generate_object(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        schema: type[T],
        **arguments: Unpack[ObjectArguments],
    ) -> ObjectResult[T]: ...
    @overload
    async def generate_object(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        schema: Mapping[str, Any],
        **arguments: Unpack[ObjectArguments],
    ) -> ObjectResult[Json]: ...
    @overload
    async def generate_object(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        schema: object,
        **arguments: Unpack[ObjectArguments],
    ) -> ObjectResult[Any]: ...
    async def generate_object(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        schema: object,
        **arguments: Unpack[ObjectArguments],
    ) -> ObjectResult[Any]:
        """Get a reply as an object of a type: `result.output`.

        A model that accepts schemas gets the schema. Any other model must call a tool with the object as
        arguments, or gets an instruction. The reply is always checked against the schema. The exceptions of
        `generate` are raised here, too.

        Args:
            model: As in `generate`.
            prompt: As in `generate`.
            schema: A type: a msgspec Struct, dataclass, TypedDict, pydantic or attrs class, or a hint such as
                ``list[Person]``. For a JSON Schema as a dict, the output is plain JSON.
            arguments: The fields of `ObjectArguments`.

        Raises:
            NoObjectGeneratedError: The reply does not match the schema. It is billed.
            SchemaError: The schema is invalid, or the type has no schema.
        """
        from .generation.objects import ObjectTask, generate_object_on

        return await generate_object_on(
            ObjectTask[Any](self._runtime, model, prompt, schema, streamed=False, **arguments)
        )

    @overload
    def stream_object(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        schema: type[T],
        **arguments: Unpack[ObjectArguments],
    ) -> ObjectStream[T]: ...
    @overload
    def stream_object(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        schema: Mapping[str, Any],
        **arguments: Unpack[ObjectArguments],
    ) -> ObjectStream[Json]: ...
    @overload
    def stream_object(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        schema: object,
        **arguments: Unpack[ObjectArguments],
    ) -> ObjectStream[Any]: ...
    def stream_object(
        self,
        model: Model | None = None,
        prompt: str | Sequence[ContentBlock] | None = None,
        *,
        schema: object,
        **arguments: Unpack[ObjectArguments],
    ) -> ObjectStream[Any]:
        """Like `generate_object`, but streamed.

        Use `async with engine.stream_object(...) as stream: async for partial in stream: …`. Partials are plain
        JSON and not checked; `await stream.object()` returns the complete object. The arguments and exceptions are
        those of `generate_object`.
        """
        from .generation.object_stream import ObjectStream
        from .generation.objects import ObjectTask

        return ObjectStream(ObjectTask[Any](self._runtime, model, prompt, schema, streamed=True, **arguments))


class PricingMethods:
    """The methods of `Engine` for prices."""

    _runtime: Runtime

    @property
    def prices(self) -> PriceTable:
        """The price table for new calls. A call has the price that applies when its attempt starts."""
        return self._runtime.pricing.prices

    async def use_prices(self, prices: PriceTable | Path | str, *, alone: bool = False) -> PriceTable:
        """Use another price table for new calls from now on.

        The costs of earlier calls stay as they are; `reprice` changes them. Other engines keep their tables.

        Args:
            prices: A table, a price file, or the version of a table in the trace. Its rows take precedence over
                the published prices.
            alone: Whether to use these prices without the published ones. Then models that are not in the table
                are unpriced.

        Returns:
            The resulting table.

        Raises:
            ConfigurationError: The price file is invalid.
            StoreError: The version is unknown.
        """
        return await self._runtime.pricing.use_prices(prices, alone=alone)

    async def reprice(
        self,
        version: str | PriceTable,
        *,
        where: CallFilter | None = None,
        dry_run: bool = False,
        as_model: str | None = None,
        for_new_calls: bool = False,
    ) -> RepriceReport:
        """Recalculate the costs of stored calls with another price table, and return a report.

        Unless `dry_run` is set, the new costs are stored, and messages in open sessions have them, too. New calls
        still use this engine's own table.

        Args:
            version: A table, or the version of a table in the trace.
            where: A filter for the calls to price.
            dry_run: Whether to report only, without changing the stored costs.
            as_model: A ``provider:name``. The calls are priced as if this model had served all of them. Such costs
                are never stored.
            for_new_calls: Whether new calls of this engine also use that table, as with `use_prices`.
                `undo_reprice` reverts that, too, if no other table was chosen since.

        Raises:
            StoreError: The version is unknown, or the trace can't be used.
            CallboardError: The engine keeps no trace.
        """
        return await self._runtime.pricing.reprice(
            version, where=where, dry_run=dry_run, as_model=as_model, for_new_calls=for_new_calls
        )

    async def undo_reprice(self) -> RepriceRun:
        """Undo the latest repricing, also for messages in open sessions.

        If this engine repriced with `for_new_calls`, new calls also use the earlier table again.

        Raises:
            StoreError: There is no repricing to undo.
            CallboardError: The engine keeps no trace.
        """
        return await self._runtime.pricing.undo_reprice()
