"""A canonical request as the body of `/generate`. This module is pure.

A setting that only tunes the reply is left out with a warning if the server doesn't know it. The server refuses a
temperature of zero, which means that nothing is sampled. So the request says that nothing is sampled.
"""

from __future__ import annotations

from callboard.adapters.contract import CallWarning, CanonicalRequest
from callboard.adapters.http.wire_call import WireCall
from callboard.adapters.refusals.required_capabilities import check_demands
from callboard.adapters.requests.encoding import encode_json
from callboard.adapters.requests.history import FittedHistory, Target, fit_history
from callboard.adapters.requests.host_options import merge_own_options
from callboard.adapters.requests.text import current_turn
from callboard.bus.errors import CapabilityError, InvalidRequestError
from callboard.bus.values.content import AudioBlock, DocumentBlock, ImageBlock
from callboard.bus.values.json import Json, JsonObject
from callboard.bus.values.warning_codes import WarningCode

from .prompt import PromptTemplate, write_prompt
from .wire import STREAM_PATH, WHOLE_PATH

_PROTECTED = frozenset({"details", "return_full_text"})
"""Without these the reply has no usage, or begins with the prompt."""

_OPTIONS = "tgi"
"""Under this name, or the adapter's own, a request carries further parameters, such as ``repetition_penalty``."""


def write_request(
    request: CanonicalRequest,
    *,
    provider: str,
    template: PromptTemplate,
    max_stop: int,
    room: int | None = None,
    stream: bool,
) -> WireCall:
    """The request on the wire. It has no tools, for they are emulated before.

    Args:
        request: The request.
        provider: The adapter's name.
        template: The template of the prompt.
        max_stop: The number of stop sequences that the server accepts.
        room: The tokens that the server's window has left for the reply; None if that is not known.
        stream: Whether the reply is to be streamed.

    Raises:
        CapabilityError: The current turn has images or other media.
        InvalidRequestError: Something of the request can't be said, or it says nothing.
    """
    check_demands(request, request.capabilities, provider)
    for message in current_turn(request.messages):
        for block in message.content:
            if isinstance(block, ImageBlock | AudioBlock | DocumentBlock):
                raise CapabilityError(f"{provider}: the text endpoint takes text only")
    history = fit_history(request, Target(provider=provider, accepts_images=False))
    if not history.messages:
        raise InvalidRequestError(f"{provider}: the request says nothing")
    history.log()
    return _Writer(request, provider).write(history, template, max_stop, room, stream)


def stop_sequences(request: CanonicalRequest, template: PromptTemplate, max_stop: int) -> tuple[str, ...]:
    """The stops that are sent: the template's, without which the model goes on for the user, then the caller's."""
    return tuple(dict.fromkeys(stop for stop in (*template.stop, *request.stop_sequences) if stop))[:max_stop]


class _Writer:
    def __init__(self, request: CanonicalRequest, provider: str) -> None:
        self.request = request
        self.provider = provider
        self.warnings: list[CallWarning] = []

    def write(
        self, history: FittedHistory, template: PromptTemplate, max_stop: int, room: int | None, stream: bool
    ) -> WireCall:
        request = self.request
        parameters: JsonObject = {
            "max_new_tokens": self._max_new_tokens(room),
            "details": True,
            "return_full_text": False,
            **self._sampling(),
        }
        stops = stop_sequences(request, template, max_stop)
        if stops:
            parameters["stop"] = list(stops)
        if any(stop and stop not in stops for stop in request.stop_sequences):
            self._left_out("part of stop_sequences", f"the server takes {max_stop} with the template's own")
        if request.output_schema is not None:
            parameters["grammar"] = {"type": "json", "value": request.output_schema}
        merge_own_options(parameters, request, _OPTIONS, self.provider, protected=_PROTECTED)
        body: Json = {"inputs": write_prompt(history, template), "parameters": parameters}
        warnings = history.warnings + tuple(self.warnings)
        path = STREAM_PATH if stream else WHOLE_PATH
        return WireCall(path, encode_json(body), warnings=warnings, losses=history.losses)

    def _max_new_tokens(self, room: int | None) -> int:
        """The limit that was asked for, or the room that there is: the server refuses a sum beyond its window."""
        asked = self.request.max_output_tokens
        if room is None or room < 1 or asked <= room:
            return asked  # without any room, the server says so best
        self.warnings.append(
            CallWarning(
                WarningCode.PARAMETER_CHANGED,
                f"max_output_tokens {asked} was sent as {room}: there is no more room",
            )
        )
        return room

    def _sampling(self) -> JsonObject:
        request = self.request
        fields: JsonObject = {}
        if request.temperature is not None:
            fields["do_sample"] = request.temperature > 0
            if request.temperature > 0:
                fields["temperature"] = request.temperature
        if request.top_p is not None and 0 < request.top_p < 1:
            fields["top_p"] = request.top_p
        elif request.top_p not in (None, 1):  # 1 means nothing, and is refused
            self._left_out("top_p", "it must be above 0 and below 1")
        for name in ("frequency_penalty", "seed"):
            value = getattr(request, name)
            if value is not None:
                fields[name] = value
        for name in ("presence_penalty", "verbosity", "user", "background"):
            value = getattr(request, name)
            if value is not None and value is not False:
                self._left_out(name, "the server does not know it")
        if request.reasoning_effort not in (None, "none"):
            self._left_out("reasoning_effort", "the server does not know it")
        return fields

    def _left_out(self, what: str, why: str) -> None:
        self.warnings.append(CallWarning(WarningCode.PARAMETER_DROPPED, f"{what} was not sent: {why}"))
