"""Events of streams for property tests: each kind, with difficult texts and values."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from callboard.bus import (
    CallWarning,
    Cost,
    CostSource,
    MessageComplete,
    MessageStart,
    ProviderBlock,
    StepFinish,
    StopReason,
    TextDelta,
    ThinkingDelta,
    TokenUsage,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    ToolUseEnd,
    ToolUseInputDelta,
    ToolUseStart,
    TurnComplete,
    TurnEvent,
    UserMessage,
)
from callboard.bus.values.content import (
    ImageBlock,
    OpaqueBlock,
    ProviderRaw,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)

TEXTS = st.text(
    st.characters(exclude_categories=()) | st.sampled_from("\ud83d\ude00"), max_size=12
)  # Half surrogate pairs are included.
IDS = st.sampled_from(["", "msg_1", "msg_2"])
INDEXES = st.integers(0, 2)
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False),
        TEXTS,
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXTS, JSON, max_size=3)
RAWS = st.none() | st.builds(ProviderRaw, st.just("p"), OBJECTS)
BLOCKS = st.one_of(
    st.builds(TextBlock, TEXTS, RAWS),
    st.builds(ThinkingBlock, TEXTS, st.none() | st.just("sig")),
    st.builds(ToolUseBlock, st.just("tu_1"), TEXTS, OBJECTS, st.none() | TEXTS, st.booleans(), RAWS),
    st.builds(ToolResultBlock, st.just("tu_1"), TEXTS, st.booleans()),
    st.builds(RedactedThinkingBlock, TEXTS),
    st.builds(OpaqueBlock, TEXTS, st.builds(ProviderRaw, st.just("p"), OBJECTS)),
    st.builds(lambda data: ImageBlock(data=data, media_type="image/png"), st.binary(max_size=20)),
)
CONTENTS = st.lists(BLOCKS, max_size=3).map(tuple)
USAGES = st.builds(
    TokenUsage,
    st.integers(0, 9),
    st.integers(0, 9),
    raw=st.none() | st.sampled_from([b'{"a": 1}', b"null", b'{"a": "\xff"}', b"no JSON"]).map(msgspec.Raw),
    details=st.none() | st.just({"web_search": 2}),
)
COSTS = st.none() | st.just(Cost(5, CostSource.COMPUTED))
TEXT_DELTAS = st.builds(TextDelta, TEXTS, INDEXES, IDS)
THINKING_DELTAS = st.builds(ThinkingDelta, TEXTS, st.none() | st.just("sig"), INDEXES, IDS)
ARGUMENT_DELTAS = st.builds(ToolUseInputDelta, st.sampled_from(["tu_1", "tu_2"]), TEXTS, INDEXES, IDS)
STOPS = st.sampled_from(StopReason)
OTHERS = st.one_of(
    st.builds(MessageStart, IDS, TEXTS, TEXTS, st.just(()) | st.just((CallWarning("code", "text"),))),
    st.builds(ToolUseStart, st.just("tu_1"), TEXTS, INDEXES, IDS),
    st.builds(ToolUseEnd, st.just("tu_1"), OBJECTS, st.booleans(), INDEXES, IDS),
    st.builds(ProviderBlock, TEXTS, JSON, INDEXES, IDS),
    st.builds(MessageComplete, CONTENTS, STOPS, st.none() | TEXTS, USAGES, IDS),
    st.builds(StepFinish, INDEXES, STOPS, USAGES, COSTS, IDS),
    st.builds(UserMessage, CONTENTS, IDS),
    st.builds(ToolStarted, tool_use_id=IDS, tool_name=TEXTS),
    st.builds(ToolProgress, tool_use_id=IDS, tool_name=TEXTS, message=st.none() | TEXTS),
    st.builds(ToolFinished, tool_use_id=IDS, tool_name=TEXTS, is_error=st.booleans(), latency_ms=INDEXES),
    st.builds(TurnComplete, st.sampled_from(["completed", "failed"]), st.none() | TEXTS),
)
EVENTS: st.SearchStrategy[TurnEvent] = st.one_of(TEXT_DELTAS, THINKING_DELTAS, ARGUMENT_DELTAS, OTHERS)
LOGS = st.lists(EVENTS, max_size=40)


def raws(events: list[TurnEvent]) -> list[bytes | None]:
    """The raw usage objects in events. Equality of usages compares them only by identity."""
    usages = (event.usage for event in events if isinstance(event, MessageComplete | StepFinish))
    return [None if usage.raw is None else bytes(usage.raw) for usage in usages]


def without_raws(events: list[TurnEvent]) -> list[TurnEvent]:
    """The same events without their raw usage."""
    return [
        msgspec.structs.replace(event, usage=msgspec.structs.replace(event.usage, raw=None))
        if isinstance(event, MessageComplete | StepFinish)
        else event
        for event in events
    ]
