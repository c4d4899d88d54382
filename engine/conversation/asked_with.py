"""The options with which a waiting turn was asked, kept until its calls are answered.

A turn that waits for an approval or for a tool's result is continued by another turn. That turn takes these
options, and what its caller passes stands over them. They are stored with the session's setup, so that they are
there after a restart and on another node. Keys, functions and signals are never stored. `lost` names them, and a
turn that is continued without its key is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from callboard.adapters import RetryPolicy, ToolChoice
from callboard.bus import ConfigurationError, Log
from callboard.bus.values.json import Json, JsonObject

from ..routing.model_choice import Model, Requirements, model_of, stored_model
from ..tools import ApprovalRequest, Pending
from .options import TurnOptions, merged

_log = Log("engine.sessions")

_IN_MEMORY = frozenset({"key", "approve", "repair_tool_call", "stop_when", "context", "signal"})
"""Options that are never stored: a key, because it opens an account, and live objects."""

_STRUCTS: dict[str, Any] = {"tool_choice": ToolChoice, "retry": RetryPolicy, "requires": Requirements}
"""Options that are read back as a Struct. All others are JSON values."""


class AskedWith(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a turn that may come to wait."""

    model: Model | None = None
    """The model of the turn alone; None is the session's."""
    options: TurnOptions = msgspec.field(default_factory=lambda: TurnOptions())
    """The options of the turn alone."""
    lost: frozenset[str] = frozenset()
    """The names of the turn's own options that were not stored."""
    lost_of_session: frozenset[str] = frozenset()
    """The names of the session's options that were in force and were not stored."""

    def continued(
        self, session_id: str, of_session: TurnOptions, model: Model | None, given: TurnOptions
    ) -> AskedWith:
        """The options of the turn that goes on.

        A forced choice of tools is left out, because it holds only for a turn's first reply.

        Args:
            session_id: The session, for the error.
            of_session: The session's options now.
            model: The model that the caller passes now; None keeps the turn's.
            given: The options that the caller passes now. They stand over the turn's.

        Raises:
            ConfigurationError: The turn was asked with a key that is lost, and none is passed.
        """
        said = merged(given)
        self._require_key(session_id, of_session, said)
        kept = cast(
            "TurnOptions",
            {
                name: value
                for name, value in self.options.items()
                if name != "tool_choice" and not (name == "fallback" and model is not None)
            },
        )
        options = merged(kept, said)
        lost = self.lost - said.keys()
        if "approve" in self.lost | self.lost_of_session and "approve" not in {*options, *merged(of_session)}:
            options["approve"] = _waits
        if silent := sorted(lost - {"approve", "key"}):
            _log.warning("options_lost", session_id=session_id, options=silent)
        return AskedWith(
            model=self.model if model is None else model,
            options=options,
            lost=lost,
            lost_of_session=self.lost_of_session - said.keys(),
        )

    def _require_key(self, session_id: str, of_session: TurnOptions, given: TurnOptions) -> None:
        if "key" in given:
            return
        if "key" in self.lost or ("key" in self.lost_of_session and of_session.get("key") is None):
            raise ConfigurationError(
                f"the waiting turn of session {session_id!r} was asked with key=, and keys are never stored: "
                "pass key= again"
            )

    def stored(self, of_session: TurnOptions) -> JsonObject | None:
        """The options as JSON; None if there is nothing to store.

        Args:
            of_session: The options that the turn inherits from its session.
        """
        said: JsonObject = {}
        lost = set(self.lost)
        for name, value in merged(self.options).items():
            if value is _waits or name in _IN_MEMORY or (plain := _as_json(value)) is msgspec.UNSET:
                lost.add(name)
            else:
                said[name] = plain
        inherited = {*self.lost_of_session, *(_IN_MEMORY & merged(of_session).keys())} - lost
        stored: JsonObject = {}
        if self.model is not None:
            stored["model"] = stored_model(self.model)
        if said:
            stored["options"] = said
        if lost:
            stored["lost"] = list[Json](sorted(lost))
        if inherited:
            stored["lost_of_session"] = list[Json](sorted(inherited))
        return stored or None


NOTHING = AskedWith()
"""A turn without options of its own."""


def asked_with_of(stored: JsonObject | None) -> AskedWith:
    """The options of a waiting turn, as `AskedWith.stored` wrote them."""
    if not stored:
        return NOTHING
    form = msgspec.convert(stored, _Stored)
    options = {
        name: msgspec.convert(value, _STRUCTS[name]) if name in _STRUCTS else value
        for name, value in form.options.items()
    }
    return AskedWith(
        model=None if form.model is None else model_of(form.model),
        options=cast("TurnOptions", options),
        lost=form.lost,
        lost_of_session=form.lost_of_session,
    )


class _Stored(msgspec.Struct):
    model: Json = None
    options: dict[str, Json] = {}
    lost: frozenset[str] = frozenset()
    lost_of_session: frozenset[str] = frozenset()


def _as_json(value: object) -> Json | msgspec.UnsetType:
    try:
        plain: Json = msgspec.json.decode(
            msgspec.json.encode(dict(value) if isinstance(value, Mapping) else value)
        )
    except (TypeError, ValueError, OverflowError, RecursionError):
        return msgspec.UNSET
    return plain


def _waits(request: ApprovalRequest) -> Pending:
    """The approve hook of a turn whose own hook is lost: every call waits for an answer."""
    return Pending()
