"""Tools for other agents: `agent_tool` passes a task to an agent, `handoff` passes the conversation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Unpack, cast

import msgspec

from callboard.adapters import Role, ToolDefinition
from callboard.bus import ConfigurationError
from callboard.bus.values.base import JsonObject

from .conversation.options import TurnOptions, merged, options_among
from .conversation.results import Reply, as_reply
from .engine import Engine
from .functions import default_engine
from .generation.objects import ObjectSchema
from .routing.candidates import expand
from .routing.model_choice import Model
from .runtime.runtime import Runtime
from .sessions.open import SessionState
from .sessions.resuming import NewSession, SessionToOpen, opened
from .sessions.session import Session
from .sessions.stored import PARENT_TAG
from .tools import Tool, ToolContext, ToolError, ToolLike, last_reply, tool
from .tools.definitions import Handoff, collected
from .tree import current_tool

AGENT_SECONDS = 600.0
"""Seconds for one call of an agent. An agent takes longer than other tools."""

AGENT_ROUNDS = 10
"""The default of `max_tool_rounds` for an agent."""

TRANSFER = "transfer_to_"
"""The prefix of the names of handoffs."""

OUTCOME_UNKNOWN = (
    "The outcome of this call is unknown: the process ended while it ran. It may have been carried out, in part "
    "or in full, and is not run again."
)
"""The result of a sub-agent's tool that ran when its process was killed."""


def agent_tool(
    name: str,
    *,
    model: Model,
    system_prompt: str | None = None,
    tools: Sequence[ToolLike] = (),
    description: str | None = None,
    output: object = None,
    engine: Engine | None = None,
    **options: Unpack[TurnOptions],
) -> Tool:
    """Make a tool that passes a task to another agent and returns the agent's answer.

    Each call of the tool runs a new session as a child of the turn that calls the tool. The session has the turn's
    tags and limits, and ends with the turn. If the engine captures content, the session is stored, and it is
    deleted together with the parent's session. When a call is run again after its process was killed, the agent's
    session continues: an existing answer is returned, and tools that ran are not run again.

    Args:
        name: The tool's name.
        model: The agent's model, by any of its names.
        system_prompt: The agent's system prompt.
        tools: The agent's tools, which may be agents, too.
        description: The tool's description for the calling model; by default, it is made from the name.
        output: A type or a JSON Schema for the answer, which is then JSON; with None, the answer is text.
        engine: The engine to use outside of a turn; None uses `default_engine()`.
        options: The options of the agent's turns. `limits` apply to each call with its descendants, in addition to
            the limits of the turns above. `timeout` is 600 seconds by default, and `max_tool_rounds` 10.

    Raises:
        ConfigurationError: Two tools have one name.
        SchemaError: `output` is neither a schema nor a type with one.
    """
    collected(tools)  # an invalid tool is reported here, and not in the first call
    schema = None if output is None else ObjectSchema[object](output)
    defaults: TurnOptions = {"max_tool_rounds": AGENT_ROUNDS, "timeout": AGENT_SECONDS}
    agent_options = merged(defaults, options_among(options, advice={}))
    if schema is not None:
        of_object: TurnOptions = {"schema_mode": "auto", "output_schema": schema.sent}
        agent_options = merged(of_object, agent_options)
    seconds = cast("float", agent_options["timeout"])

    async def run(
        task: Annotated[
            str, "The whole task, with everything that the agent needs to know. It sees nothing else."
        ],
    ) -> object:
        session = await _session(engine, model, system_prompt, tools)
        reply = await _answer(session, task, agent_options)
        if schema is None:
            return reply.text
        try:
            return schema.read(msgspec.json.decode(reply.text))
        except (ValueError, msgspec.DecodeError) as error:
            raise ToolError(f"{name} gave no answer that follows its schema: {error}") from error

    about = description or f"Give a task to the agent {name!r} and get its answer."
    return tool(run, name=name, description=about, timeout=seconds)


async def _session(
    engine: Engine | None, model: Model, system_prompt: str | None, tools: Sequence[ToolLike]
) -> Session:
    """The agent's session for the tool call that runs here."""
    caller = current_tool.get()
    if caller is None or not isinstance(caller.runtime, Runtime):
        used = engine or default_engine()
        return used.session(model, system_prompt=system_prompt, tools=tools)
    runtime = caller.runtime
    tags = {PARENT_TAG: caller.session_id} if caller.session_id else {}
    session_id = "ses_" + caller.key.replace("-", "")
    if runtime.capture is None:
        state = SessionState(runtime.clock.new_id("ses"), model, system_prompt, tools, tags)
        runtime.sessions.open(state)
        return Session(runtime, state)
    to_open = SessionToOpen(session_id=session_id, tools=tools, model=model, system_prompt=system_prompt)
    return Session(runtime, await opened(runtime, to_open, NewSession(tags=tags)))


async def _answer(session: Session, task: str, options: TurnOptions) -> Reply:
    """The agent's answer: from an earlier process, or from a turn that starts or continues now."""
    messages = session.messages
    if messages and messages[-1].role is Role.ASSISTANT and not session.pending_calls:
        return as_reply(messages[-1])
    answers = {call.id: ToolError(OUTCOME_UNKNOWN) for call in session.pending_calls}
    going_on = bool(answers) or (bool(messages) and messages[-1].role is Role.TOOL)
    caller = current_tool.get()
    if caller is not None and caller.streamed:
        stream = session.submit_stream(answers, **options) if going_on else session.stream(task, **options)
        async with stream as turn:
            return await turn.message()
    return await (session.submit(answers, **options) if going_on else session.send(task, **options))


def handoff(
    to: str,
    *,
    model: Model,
    system_prompt: str | None = None,
    tools: Sequence[ToolLike] = (),
    description: str | None = None,
) -> Tool:
    """Make a tool with which a model passes the conversation to another agent.

    The turn continues with the other agent's model, system prompt and tools. The other agent gets the history,
    fitted to its model. The limits of the turn and its number of tool rounds still apply. In later turns, the
    session also uses the other agent. If a reply calls several handoffs, the first one is used, and the others get
    an error.

    Args:
        to: The other agent's name. The tool is called ``transfer_to_NAME``.
        model: The other agent's model, by any of its names.
        system_prompt: The other agent's system prompt.
        tools: The other agent's tools. For a handoff back, include a tool that `handoff` made.
        description: The tool's description for the model; by default, it is made from the name.

    Raises:
        ConfigurationError: Two tools have one name, or the name has a character that is not allowed in a tool's
            name.
    """
    if not to.replace("_", "").replace("-", "").isalnum():
        raise ConfigurationError(f"to={to!r}: an agent's name has letters, digits, _ and - only")
    schema: JsonObject = {"type": "object", "properties": {}}
    about = description or f"Give the conversation to the agent {to!r}, which answers from then on."

    async def hand_over(arguments: Mapping[str, object], context: ToolContext) -> str:
        calls = last_reply(context.messages).tool_uses
        first = next((call.name for call in calls if call.name.startswith(TRANSFER)), definition.name)
        if first != definition.name:
            raise ToolError(f"The conversation goes to {first.removeprefix(TRANSFER)}, so it can't go to {to}.")
        caller = current_tool.get()
        if caller is not None and isinstance(caller.runtime, Runtime):
            expand(caller.runtime.registry, model, None)  # an unknown model raises the tool's error here
        return f"The conversation is with {to} now."

    definition = ToolDefinition(f"{TRANSFER}{to}", about, schema)
    collected(tools)
    return Handoff(definition, hand_over, model=model, system_prompt=system_prompt, tools=tools)
