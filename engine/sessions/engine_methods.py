"""The session methods of `Engine`: open, resume, list, delete and import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from ..conversation.options import SessionOptions, merged, session_options
from ..routing.candidates import expand
from ..routing.model_choice import Model, Requirements
from ..runtime.runtime import Runtime
from ..tools import ToolLike, as_tools
from .resuming import NewSession, SessionToOpen, opened, require_kept, resumed
from .session import Session
from .state import SessionState
from .stored import SessionInfo, deleted, imported, listed, state_of


class SessionMethods:
    """The methods of `Engine` for sessions."""

    _runtime: Runtime

    def session(
        self,
        model: Model,
        *,
        system_prompt: str | None = None,
        tools: Sequence[ToolLike] = (),
        session_id: str | None = None,
        tags: dict[str, str] | None = None,
        requires: Requirements | None = None,
        name: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Session:
        """A new session.

        Args:
            model: Any of a model's names, several of them in order, or a `ModelChoice`; checked now.
            system_prompt: The system prompt of its turns.
            tools: The tools of its turns, or plain functions with type hints and docstrings.
            session_id: The session's id; a new one is made by default.
            tags: The tags of its calls, for the trace; never sent.
            requires: The abilities that the model must have, besides the abilities that its requests need.
            name: A name for people.
            options: Default options for its turns; a turn's own options override them. The fields of
                `SessionOptions` (fallback, approve, context, key, temperature, max_output_tokens,
                max_tool_rounds).

        Raises:
            ConfigurationError: A name is unknown, or two tools have one name.
            ToolDefinitionError: A function lacks type hints or descriptions of its parameters.
            CallboardError: A session of that id is open.
        """
        expand(self._runtime.registry, model, options.get("fallback"))
        state = SessionState(
            session_id or self._runtime.clock.new_id("ses"),
            model,
            system_prompt,
            tools,
            tags or {},
            options=session_options(options),
            requires=requires,
            name=name,
        )
        return self._open(state)

    async def open_session(
        self,
        session_id: str,
        *,
        model: Model | None = None,
        system_prompt: str | None = None,
        tools: Sequence[ToolLike] | None = None,
        tags: dict[str, str] | None = None,
        requires: Requirements | None = None,
        name: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Session:
        """The session of that id: the open one, else the stored one with its history, else a new one.

        The engine must have `capture_content=True`, so that the session can be opened again later. Afterwards this
        engine owns the session, as after `resume`. The arguments replace the stored settings from the next turn
        on; None keeps a stored setting.

        Args:
            session_id: An id that the host chooses, for example from the ids of a tenant and a conversation.
            model: As in `session`; a new session needs one.
            system_prompt: As in `session`.
            tools: As in `session`. The code of tools is not stored, so pass them each time: without them, the
                tools of a stored session are passive.
            tags: As in `session`, for a new session.
            requires: As in `session`, for a new session.
            name: As in `session`, for a new session.
            options: As in `session`.

        Raises:
            CallboardError: Some content of the session is missing from the trace.
            SessionBusy: Another node of the cluster runs a turn of the session.
            ConfigurationError: A name is unknown, two tools have one name, a new session has no model, or the
                engine doesn't keep content.
            ToolDefinitionError: A function lacks type hints or descriptions of its parameters.
            AdmissionError: In a cluster, the owner of the session can't be determined.
            StoreError: The trace can't be used.
        """
        runtime = self._runtime
        require_kept(runtime)
        if model is not None:
            expand(runtime.registry, model, options.get("fallback"))
        wanted = SessionToOpen(
            session_id=session_id,
            tools=None if tools is None else as_tools(tools),
            model=model,
            system_prompt=system_prompt,
            options=session_options(options),
        )
        return Session(runtime, await opened(runtime, wanted, NewSession(tags=tags, requires=requires, name=name)))

    def _open(self, state: SessionState) -> Session:
        self._runtime.sessions.open(state)
        return Session(self._runtime, state)

    async def resume(
        self,
        session_id: str,
        *,
        tools: Sequence[ToolLike] | None = None,
        model: Model | None = None,
        system_prompt: str | None = None,
        **options: Unpack[SessionOptions],
    ) -> Session:
        """A stored session with its history. The session may belong to another process, even a killed one.

        This engine then owns the session. With `capture_content`, the next turn in the engine that had the
        session open raises SessionTakenOver.

        In a cluster the session comes from the shared store. If another node holds it and runs no turn of it,
        that node hands it over. If the node has died, this waits until its lease has expired.

        Args:
            session_id: The id of the session.
            tools: The tools with their code, which is not stored. With None, the session has the stored
                definitions as passive tools.
            model: A model in place of the stored one.
            system_prompt: A system prompt in place of the stored one.
            options: As in `session`, in place of the stored ones.

        Raises:
            CallboardError: The session is open, not stored, or not stored completely.
            SessionBusy: Another node of the cluster runs a turn of the session.
            ConfigurationError: The session's model is not known here.
            StoreError: The trace can't be read.
        """
        await self._runtime.host.settle()
        wanted = SessionToOpen(
            session_id=session_id,
            tools=tools,
            model=model,
            system_prompt=system_prompt,
            options=session_options(options),
        )
        session = self._open(await resumed(self._runtime, wanted))
        state = session._state
        if model is not None:
            self._runtime.sessions.change_model(state, model)
        return session

    async def sessions(
        self, *, limit: int | None = 1000, tags: Mapping[str, str] | None = None
    ) -> list[SessionInfo]:
        """The sessions that are open here, and sessions of the trace, the latest first.

        Args:
            limit: The maximum number of sessions from the trace; None returns all.
            tags: Tags that the sessions must all have, such as ``{"tenant": "red"}``.

        Raises:
            StoreError: The trace can't be read.
        """
        return await listed(self._runtime, limit, tags)

    async def delete_session(self, session_id: str) -> bool:
        """Delete a session: the open one, and its stored messages.

        Its calls and their costs stay in the trace. If you still use its `Session` object, the next turn starts it
        again, empty. Copies that were shipped to another store are deleted when that store can be reached.

        Returns:
            False if there was no such session.

        Raises:
            SessionBusy: A turn of the session runs, or another node of the cluster holds it.
            StoreError: The trace can't be written.
        """
        return await deleted(self._runtime, session_id)

    async def import_session(
        self,
        document: bytes | str,
        *,
        session_id: str | None = None,
        tools: Sequence[ToolLike] | None = None,
        model: Model | None = None,
        key: str | None = None,
    ) -> Session:
        """A session from a document that `Session.export` has written, with its history and settings. The document
        may come from another engine.

        Args:
            document: The document.
            session_id: The id of the new session; the exported id by default.
            tools: Tools that replace the exported ones; without them, the exported tools are passive.
            model: A model that replaces the exported one.
            key: As in `session`; it is not exported.

        Raises:
            CallboardError: The document is not an exported session, or a session of that id is open.
            ConfigurationError: The session's model is not known here.
        """
        await self._runtime.host.start()
        state = state_of(self._runtime, imported(document), session_id=session_id, tools=tools, model=model)
        state.options = merged(state.options, {"key": key})
        session = self._open(state)
        await self._runtime.sessions.own(state)
        self._runtime.sessions.announce(state)
        return session
