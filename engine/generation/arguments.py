"""The arguments of the functions: how they are checked and converted to messages, a request and a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, Unpack, cast, get_args

from callboard.adapters import CanonicalRequest, CanonicalResponse, ContentBlock, Message, Role, TextBlock
from callboard.bus import CallboardError, ConfigurationError

from ..conversation.options import TimeoutConfig, TurnOptions, options_among, options_of_request
from ..conversation.results import GenerateResult
from ..conversation.turn import Turn, run_turn
from ..conversation.turn_context import FirstIds
from ..models.registry import ModelRegistry
from ..routing.model_choice import Model, ModelChoice
from ..runtime.in_flight import AbortController
from ..runtime.runtime import Runtime
from ..sessions.open import SessionState
from ..tools import Tool, ToolLike


def turn_of(
    runtime: Runtime,
    request: CanonicalRequest,
    *,
    tags: Mapping[str, str] | None,
    streamed: bool,
    model: Model | None = None,
) -> Turn:
    """The single turn of a conversation without a session. It is equivalent to the request.

    `model`, if given, replaces the request's model.
    """
    state = SessionState(
        "", request.model, request.system_prompt, [Tool(tool) for tool in request.tools], dict(tags or {})
    )
    state.calls_as = request.session_id
    turn = Turn(
        runtime=runtime,
        state=state,
        new=request.messages,
        model=model,
        options=options_of_request(request),
        streamed=streamed,
        first_ids=FirstIds(request.request_id, request.message_id),
        max_pauses=0,
    )
    turn.client_request = request
    turn.steering.close("a CanonicalRequest has one reply. To steer, use stream(model, messages=[...])")
    return turn


async def complete(
    runtime: Runtime, request: CanonicalRequest, *, tags: Mapping[str, str] | None = None
) -> CanonicalResponse:
    """One reply to a request; see `Engine.complete`."""
    turn = turn_of(runtime, request, tags=tags, streamed=False)
    await run_turn(turn)
    return turn.steps[-1].response


MessageLike: TypeAlias = Message | Mapping[str, object]
"""A message, or a mapping with a role (``user``, ``assistant``, ``system``, ``developer``) and a content. The
content is text, or a list. Its items are texts, ``{"type": "text", "text": …}`` or content blocks.
"""

_SPEAKERS = (Role.USER, Role.ASSISTANT, Role.SYSTEM, Role.DEVELOPER)


def as_messages(messages: Sequence[MessageLike]) -> tuple[Message, ...]:
    """Convert the messages that a program passes. Raises TypeError."""
    return tuple(each if isinstance(each, Message) else _message(each) for each in messages)


def _message(message: object) -> Message:
    if not isinstance(message, Mapping):
        raise TypeError(
            f"messages must be Message objects, not {type(message).__name__}. Use Message.user('...') or "
            "{'role': 'user', 'content': '...'}"
        )
    if more := message.keys() - {"role", "content"}:
        raise TypeError(
            f"a message given as a dict has only role and content, not {min(map(repr, more))}: "
            f"Message(...) and its blocks have the other fields"
        )
    role, content = message.get("role"), message.get("content")
    if role not in _SPEAKERS:
        raise TypeError(
            f"role is {role!r}; the role of a message given as a dict is one of "
            f"{', '.join(map(str, _SPEAKERS))}. For the result of a tool, use Message.tool_result(...)"
        )
    if isinstance(content, str):
        return Message(Role(role), (TextBlock(content),))
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        return Message(Role(role), tuple(map(_block, content)))
    raise TypeError(f"content is {type(content).__name__}; expected text or a list of blocks")


def _block(block: object) -> ContentBlock:
    match block:
        case str():
            return TextBlock(block)
        case {"type": "text", "text": str(text), **more} if not more:
            return TextBlock(text)
        case _ if isinstance(block, get_args(ContentBlock)):
            return block  # type: ignore[no-any-return]
        case _:
            shown = (
                f"a block of type {block.get('type')!r}" if isinstance(block, Mapping) else type(block).__name__
            )
            raise TypeError(
                f"content holds {shown}; "
                "expected texts, {'type': 'text', 'text': '...'}, or blocks such as ImageBlock"
            )


__all__ = ["Arguments", "TimeoutConfig", "conversation", "new_turn", "of_provider", "options_of"]


class Arguments(TurnOptions, total=False):
    """The arguments of `generate`, `stream` and similar functions, besides model and prompt. They include all
    options of a turn, see `TurnOptions`.
    """

    messages: Sequence[MessageLike] | None
    """A whole conversation, instead of a prompt. An item may be a plain mapping with role and content."""
    system_prompt: str | None
    tools: Sequence[ToolLike]
    """The tools, or plain functions with type hints and docstrings.

    Tools with a function are run, in at most `max_tool_rounds` rounds. If a tool has no function, its calls are
    returned.
    """
    provider: str | None
    """The provider, if several providers have a model of this name. It also allows unlisted models."""


_OWN = frozenset(Arguments.__annotations__) - frozenset(TurnOptions.__annotations__)

_ADVICE = {
    "system": "use system_prompt=",
    "client": "use engine=",
    "schema": "use generate_object() or stream_object(); output_schema= asks for JSON text",
    "response_format": "use generate_object() or stream_object(); output_schema= asks for JSON text",
    "session": "use session.send() or session.stream()",
    "stream": "use stream() instead of generate()",
}


def new_turn(
    runtime: Runtime,
    model: Model | None,
    prompt: str | Sequence[ContentBlock] | None,
    *,
    streamed: bool,
    **arguments: Unpack[Arguments],
) -> Turn:
    """The single turn of a separate conversation. Raises CallboardError or TypeError."""
    _check_kinds(model, prompt, arguments)
    options = options_of(arguments)
    messages = conversation(model, prompt, arguments.get("messages"))
    meant = of_provider(runtime.registry, model, arguments.get("provider"))
    state = SessionState(
        "",
        meant or "",
        arguments.get("system_prompt"),
        arguments.get("tools", ()),
        {},
    )
    return Turn(runtime=runtime, state=state, new=messages, model=meant, options=options, streamed=streamed)


def _check_kinds(model: object, prompt: object, arguments: Arguments) -> None:
    """Raise TypeError for common mistakes that would otherwise only fail much later."""
    if isinstance(model, CanonicalRequest):
        raise TypeError("a CanonicalRequest is for engine.complete() and engine.stream()")
    if model is not None and not isinstance(model, str | Sequence | ModelChoice):
        raise TypeError(f"model must be a name, several names or a ModelChoice, not {_kind(model)}")
    if isinstance(prompt, Message) or (isinstance(prompt, list | tuple) and Message in map(type, prompt)):
        raise TypeError("prompt must be text or content blocks. Use messages=[...] for messages")
    if prompt is not None and not isinstance(prompt, str | Sequence):
        raise TypeError(f"prompt must be text or content blocks, not {_kind(prompt)}")
    if isinstance(arguments.get("stop_sequences"), str):
        raise TypeError("stop_sequences must be a list of texts: stop_sequences=['...']")
    if isinstance(arguments.get("signal"), AbortController):
        raise TypeError("signal must be the signal of the controller: signal=controller.signal")


def _kind(value: object) -> str:
    return type(value).__name__


def conversation(
    model: Model | None, prompt: str | Sequence[ContentBlock] | None, messages: Sequence[MessageLike] | None
) -> tuple[Message, ...]:
    """The messages to send. Raises CallboardError or TypeError."""
    if prompt is not None and messages is not None:
        raise CallboardError(
            "both prompt and messages are given: pass only one. To add a prompt to messages, pass "
            "messages=[*messages, Message.user(prompt)]"
        )
    if prompt is not None:
        return (Message.user(prompt),)
    if messages:
        return as_messages(messages)
    if messages is not None:
        raise CallboardError("messages is empty: pass a prompt, or at least one message")
    hint = ""
    if isinstance(model, str):
        hint = f". The first argument is the model, here {model[:40]!r}. For the default model, pass prompt=..."
    raise CallboardError(f"pass a prompt or messages{hint}")


def options_of(arguments: Arguments) -> TurnOptions:
    """Select the options of a turn from the arguments. Raises TypeError."""
    options = cast("Mapping[str, Any]", arguments)
    return options_among(options, others=_OWN, advice=_ADVICE)


def of_provider(registry: ModelRegistry, model: Model | None, provider: str | None) -> Model | None:
    """The model for a name and a separate provider. Raises ConfigurationError or CallboardError."""
    if provider is None:
        return model
    if isinstance(model, ModelChoice):
        raise CallboardError("provider= is for model names. Limit a ModelChoice with among=(...)")
    name = model or registry.default_model
    if not name:
        raise ConfigurationError(f"provider={provider!r} without a model: name one of its models")
    if isinstance(name, str):
        return registry.resolve(name, provider).model.id
    return tuple(registry.resolve(each, provider).model.id for each in name)


async def generate_on(
    runtime: Runtime,
    model: Model | None,
    prompt: str | Sequence[ContentBlock] | None,
    **arguments: Unpack[Arguments],
) -> GenerateResult:
    turn = new_turn(runtime, model, prompt, streamed=False, **arguments)
    await run_turn(turn)
    return result_of(turn)


def result_of(turn: Turn) -> GenerateResult:
    """The result of a turn that ended without an error."""
    return GenerateResult(
        steps=tuple(turn.steps),
        messages=turn.messages,
        status=turn.status,
        total_cost=turn.cost,
        cost_sum=turn.spending.sum,
        tree_cost=turn.tree_cost,
        tree_usage=turn.tree_usage,
        undelivered=turn.undelivered,
    )
