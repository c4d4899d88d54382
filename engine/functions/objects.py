"""`generate_object` and `stream_object`, with their sync twins: see `functions`.

Each is written three times for type checkers: for a type, whose instance comes back; for a JSON Schema, with which
plain JSON comes back; and for hints that are no classes (``list[Person] | None``), of which checkers know nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, Unpack, overload

from callboard.adapters import ContentBlock
from callboard.bus.values.json import Json

from ..engine import Engine
from ..objects.generate import ObjectArguments, ObjectResult
from ..objects.stream import ObjectStream
from ..routing.model_choice import Model
from .default import default_engine, engine_on
from .sync_host import sync_host
from .sync_object_stream import SyncObjectStream

T = TypeVar("T")


@overload
async def generate_object(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: type[T],
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectResult[T]: ...


@overload
async def generate_object(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: Mapping[str, Any],
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectResult[Json]: ...


@overload
async def generate_object(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: object,
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectResult[Any]: ...


async def generate_object(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: object,
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectResult[Any]:
    """Ask a model for data: `result.output` is an instance of the schema's type, or plain JSON for a JSON Schema.

    A model that takes schemas is held to the schema by its provider. Another is made to call a tool whose
    arguments are the object, or is told the schema, and `result.warnings` says so. The reply is checked here in
    any case. The exceptions of `generate` are raised here, too.

    Args:
        model: As in `generate`.
        prompt: As in `generate`.
        schema: A dataclass, TypedDict, msgspec Struct, pydantic or attrs class, a hint such as ``list[Person]``,
            or a JSON Schema as a dict.
        engine: As in `generate`.
        arguments: The fields of `ObjectArguments`.

    Raises:
        NoObjectGeneratedError: The reply is no such object. It has been paid for all the same.
        SchemaError: The schema is none, or the type has none.
    """
    return await (engine or default_engine()).generate_object(model, prompt, schema=schema, **arguments)


@overload
def stream_object(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: type[T],
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectStream[T]: ...


@overload
def stream_object(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: Mapping[str, Any],
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectStream[Json]: ...


@overload
def stream_object(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: object,
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectStream[Any]: ...


def stream_object(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: object,
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectStream[Any]:
    """Like `generate_object`, but the object is given as it grows; see `ObjectStream`."""
    return (engine or default_engine()).stream_object(model, prompt, schema=schema, **arguments)


@overload
def generate_object_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: type[T],
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectResult[T]: ...


@overload
def generate_object_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: Mapping[str, Any],
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectResult[Json]: ...


@overload
def generate_object_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: object,
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectResult[Any]: ...


def generate_object_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: object,
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> ObjectResult[Any]:
    """`generate_object` for code without an event loop; see `generate_sync`."""
    host = sync_host()

    async def ask() -> ObjectResult[Any]:
        return await engine_on(host, engine).generate_object(model, prompt, schema=schema, **arguments)

    return host.run(ask, name="generate_object_sync()")


@overload
def stream_object_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: type[T],
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> SyncObjectStream[T]: ...


@overload
def stream_object_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: Mapping[str, Any],
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> SyncObjectStream[Json]: ...


@overload
def stream_object_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: object,
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> SyncObjectStream[Any]: ...


def stream_object_sync(
    model: Model | None = None,
    prompt: str | Sequence[ContentBlock] | None = None,
    *,
    schema: object,
    engine: Engine | None = None,
    **arguments: Unpack[ObjectArguments],
) -> SyncObjectStream[Any]:
    """`stream_object` for code without an event loop; see `generate_sync`."""
    host = sync_host()

    async def ask() -> ObjectStream[Any]:
        stream = engine_on(host, engine).stream_object(model, prompt, schema=schema, **arguments)
        host.close_at_end(stream)
        return stream

    return SyncObjectStream(host, host.run(ask, name="stream_object_sync()"))
