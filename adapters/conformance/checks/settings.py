"""Section 3.2: the fields of a request beside its messages, and their way to the provider."""

from __future__ import annotations

import msgspec

from callboard.adapters.conformance.asking import calling
from callboard.adapters.conformance.checking import check
from callboard.adapters.conformance.invariants import require
from callboard.adapters.conformance.kit import TOOLS, Kit, NotShown, Says, Stage
from callboard.adapters.requests.effort import EFFORTS
from callboard.bus.errors import AdapterError, InvalidRequestError
from callboard.bus.values.content import OpaqueBlock, ProviderRaw
from callboard.bus.values.json import Json, JsonObject
from callboard.bus.values.messages import Message
from callboard.bus.values.warning_codes import WarningCode

from .requests import TOOL_FORMAT, sent_body

SETTINGS = "Model mapping defined"

EFFORT = "heroic"
"""No reasoning effort that there is."""


async def refusal(at: Stage, *, streamed: bool = False, **fields: object) -> InvalidRequestError | None:
    """The error that refuses a request; None if the request was sent.

    Raises:
        AssertionError: It was refused only after it had been sent.
    """
    try:
        if streamed:
            async for _ in at.adapter.stream(at.request(**fields)):
                pass
        else:
            await at.adapter.complete(at.request(**fields))
    except InvalidRequestError as error:
        require(at.asked() == 0, f"{fields} were refused after the request had been sent")
        return error
    return None


def names_it(error: InvalidRequestError, name: str) -> None:
    """Raise AssertionError unless the error names what is refused."""
    require(name in str(error), f"the error for {name!r} does not name it: {error}")


def _options(kit: Kit, name: str, value: Json) -> dict[str, Json]:
    return {kit.name: {name: value}}


async def body_of(kit: Kit, *, streamed: bool) -> JsonObject:
    """The body of a plain request."""
    async with kit.stage(Says("Hi.", streamed=streamed)) as at:
        await refusal(at, streamed=streamed)
        return sent_body(at)


@check("3.2", SETTINGS)
async def a_hosts_own_field_joins_or_is_named(kit: Kit) -> None:
    """A field of `provider_options` is sent beside the adapter's own, or is an error that names it."""
    name, value = "a_field_of_the_host", "its value"
    before = await body_of(kit, streamed=False)
    async with kit.stage(Says("Hi.", streamed=False)) as at:
        error = await refusal(at, provider_options=_options(kit, name, value))
        if error is not None:
            return names_it(error, name)
        body = sent_body(at)
    require(_has(body, name, value), f"{name!r} was dropped in silence: {body}")
    lost = before.keys() - body.keys()
    require(not lost, f"with a field of the host's the adapter's own {sorted(lost)} are gone")


def _has(value: Json, name: str, wanted: Json) -> bool:
    if isinstance(value, dict):
        return value.get(name) == wanted or any(_has(inner, name, wanted) for inner in value.values())
    return False


@check("3.2", TOOL_FORMAT)
async def a_hosts_tools_join_or_are_named(kit: Kit) -> None:
    """Tools in `provider_options` take none of the request's own away, or are an error that names the field."""
    async with kit.stage(Says("Hi.", streamed=False)) as at:
        calling(at)
        error = await refusal(at, provider_options=_options(kit, "tools", [{"type": "of_the_host"}]))
        if error is not None:
            return names_it(error, "tools")
        body = msgspec.json.encode(sent_body(at)).decode()
    lost = [tool.name for tool in TOOLS if tool.name not in body]
    require(not lost, f"with a tool of the host's these of the request are gone: {lost}")
    require("of_the_host" in body, "the host's tool was dropped in silence")


@check("3.2", SETTINGS)
async def who_answers_and_how_is_not_the_hosts_to_say(kit: Kit) -> None:
    """A field that says which model answers, or whether it streams, is refused in `provider_options` by name."""
    whole, stream = await body_of(kit, streamed=False), await body_of(kit, streamed=True)
    others: JsonObject = {name: "another-model" for name, value in whole.items() if value == kit.model}
    for name in whole.keys() | stream.keys():
        asked, otherwise = whole.get(name, False), stream.get(name, False)
        if isinstance(asked, bool) and isinstance(otherwise, bool) and asked is not otherwise:
            others[name] = otherwise
    if not others:
        raise NotShown("neither the model nor the way of the reply stands in the body")
    for name, value in others.items():
        async with kit.stage(Says("Hi.", streamed=False)) as at:
            error = await refusal(at, provider_options=_options(kit, name, value))
        if error is None:
            raise AssertionError(f"a host can set {name!r} to {value!r}")
        names_it(error, name)


@check("3.2", SETTINGS)
async def an_unknown_reasoning_effort_is_refused(kit: Kit) -> None:
    """An unknown reasoning effort is an error that names it, before anything is sent."""
    for streamed in (False, True):
        async with kit.stage(Says("Hi.", streamed=streamed)) as at:
            error = await refusal(at, streamed=streamed, reasoning_effort=EFFORT)
        if error is None:
            raise AssertionError(f"reasoning_effort {EFFORT!r} was {'streamed' if streamed else 'sent'}")
        names_it(error, EFFORT)


@check("3.2", SETTINGS)
async def every_warning_has_a_known_code(kit: Kit) -> None:
    """Whatever an adapter warns of, its code is a `WarningCode`."""
    raw = ProviderRaw("somebody-else", {"type": "reasoning"}, "their-model")
    history = (Message.user("Hello"), Message.assistant([OpaqueBlock("server_tool", raw)]), Message.user("Go on"))
    asked: list[dict[str, object]] = [
        {"temperature": 1.7, "top_p": 0.5, "seed": 7, "verbosity": "low", "user": "somebody"},
        {"frequency_penalty": 0.5, "presence_penalty": 0.5, "stop_sequences": (" ", "END")},
        {"output_schema": {"type": "object", "properties": {"a": {"type": "string"}}}},
        {"messages": history},
    ]
    asked += [{"reasoning_effort": effort} for effort in EFFORTS]
    codes: set[str] = set()
    for fields in asked:
        async with kit.stage(Says("Hi.", streamed=False)) as at:
            try:
                response = await at.adapter.complete(msgspec.structs.replace(at.request(), **fields))
            except AdapterError:
                continue  # refused, which is no warning
            codes |= {warning.code for warning in response.warnings}
    unknown = codes - set(WarningCode)
    require(not unknown, f"these codes are no WarningCode: {sorted(unknown)}")
