"""The codes of warnings: what a `CallWarning` of the adapters and the engine is about. The one set of them.

`docs/errors.md` shows it as a table, which a test holds to this.
"""

from __future__ import annotations

from enum import StrEnum


class WarningCode(StrEnum):
    """What a warning is about, for programs. A host's own warnings may have other codes."""

    meaning: str
    """What the warning is about, for people, as the documentation says it."""

    def __new__(cls, code: str, meaning: str) -> WarningCode:
        member = str.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    # -- what was asked for, and was sent otherwise or not at all

    PARAMETER_DROPPED = "parameter_dropped", "A setting was not sent, because the model or the protocol lacks it."
    PARAMETER_CHANGED = "parameter_changed", "A setting was sent with the nearest value that the model takes."
    TEMPERATURE_LOWERED = "temperature_lowered", "The temperature was sent as the highest that there is."
    STOP_SEQUENCE_DROPPED = "stop_sequence_dropped", "A stop sequence of white space only was not sent."
    CONTENT_DROPPED = "content_dropped", "A block of the history was not sent; the message says which, and why."
    TURN_ADDED = "turn_added", "The history got a turn that the provider demands."
    TOOL_NOT_STRICT = "tool_not_strict", "A tool's schema doesn't fit strict mode, so the tool is sent without it."
    TOOLS_LEFT_OUT = "tools_left_out", "More tools were given than the model takes; the message names the others."
    TOOLS_EMULATED = "tools_emulated", "The model has no tools of its own: its calls are constrained output."
    SCHEMA_AS_TOOL = "schema_as_tool", "The output schema was sent as the arguments of a tool."
    SCHEMA_AS_INSTRUCTION = "schema_as_instruction", "The output schema was told in the system text."
    SCHEMA_FOLDED = (
        "schema_folded",
        "A union at a schema's root was sent as one object, folded.",
    )
    SCHEMA_HINDERS_TOOLS = "schema_hinders_tools", "The reply is held to a schema that a tool call may not fit."
    PROMPT_NEAR_WINDOW = "prompt_near_window", "The prompt may be too long for the model's context window."
    INPUT_TYPE_ASSUMED = "input_type_assumed", "The provider wants to know what texts are embedded for: documents."
    INPUT_MAY_BE_CUT = "input_may_be_cut", "A text may be longer than the embedding model reads."
    REQUEST_REPAIRED = "request_repaired", "The provider refused the request, and it was sent again, mended."
    REASONING_REFUSED = (
        "reasoning_refused",
        "The provider refused its reasoning in the history, which was left out.",
    )

    # -- what came, and was not as it should be

    USAGE_ESTIMATED = (
        "usage_estimated",
        "The provider reported no usage, or a part of it: the rest is an estimate.",
    )
    USAGE_INCONSISTENT = "usage_inconsistent", "The reported usage contradicts itself, so the call has no price."
    NO_STOP_REASON = "no_stop_reason", "The provider did not say why the reply ended."
    EMPTY_REPLY = "empty_reply", "The reply ended well, without a text and without a call; see `retry_empty`."
    REFUSAL = "refusal", "The model refused to answer; the message gives the provider's reason."
    FINISH_MESSAGE = "finish_message", "What the provider says about how the reply ended."
    BODY_MENDED = "body_mended", "A part of the reply could not be read, and was replaced."
    EXTRA_CANDIDATES = "extra_candidates", "The reply has several candidates, of which only the first is read."
    PROVIDER_CHANGED_INPUT = (
        "provider_changed_input",
        "The provider left parts of the request out, or changed them; `provider_details` says which.",
    )
    UNKNOWN_EVENT = "unknown_event", "The stream has an event of a kind that is not known."
    UNKNOWN_CONTENT = "unknown_content", "The reply has a piece of content that is not known."
    UNKNOWN_DELTA = "unknown_delta", "The stream has a delta of a kind that is not known."
    STRAY_DELTA = "stray_delta", "The stream has a delta of a block that was never begun."
    MISPLACED_DELTA = "misplaced_delta", "The stream has a delta in a block of another kind."
    REPEATED_START = "repeated_start", "The stream began its message once more."
    LATE_SIGNATURE = "late_signature", "A signature came after its reasoning had ended, and was dropped."
    STRAY_TOOL_ARGUMENTS = "stray_tool_arguments", "Arguments for an unknown tool call were dropped."
    LATE_TOOL_ARGUMENTS = "late_tool_arguments", "Arguments after the end of their tool call were dropped."
    NAMELESS_TOOL_CALL = "nameless_tool_call", "A tool call without a name was dropped."
    TOOL_NAME_MENDED = "tool_name_mended", "A tool's name had marks of the chat template, which were removed."
    REPEATED_CALL = "repeated_call", "A tool call came twice under one id, and counts once."
    ARGUMENTS_UNWRAPPED = "arguments_unwrapped", "A tool call's arguments were a JSON string that held the object."
    ARGUMENTS_REPLACED = (
        "arguments_replaced",
        "The provider sent other arguments at the end of a tool call than before, and the last ones count.",
    )
    MAX_TOOL_ROUNDS = "max_tool_rounds", "The turn ended because it had as many rounds of tools as it may."
    FEWER_IMAGES = "fewer_images", "The provider made fewer images than were asked for."
    FOUND_AGAIN = "found_again", "The answer that told a video's job was lost, and the job was found."
    UNKNOWN_STATUS = "unknown_status", "A video's job has a status that is not known: taken as in progress."
