"""The judges of requests are strict: they find each kind of fault at its place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from callboard import Json, JsonObject

from ..support.judges import chat_faults, messages_faults, responses_faults

MESSAGES: JsonObject = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}
RESPONSES: JsonObject = {"model": "m", "input": [{"role": "user", "content": "Hi"}]}
CHAT: JsonObject = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("judge", "body"), [(messages_faults, MESSAGES), (responses_faults, RESPONSES), (chat_faults, CHAT)]
)
def test_a_good_body_has_no_faults_and_an_unknown_key_is_one(
    judge: Callable[[JsonObject], list[str]], body: JsonObject
) -> None:
    assert judge(body) == []
    assert judge({**body, "stream": True}) == []
    (fault,) = judge({**body, "nonsense": 1})
    assert "'nonsense'" in fault


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"max_tokens": "1"}, "$.max_tokens: not <class 'int'> but '1'"),
        ({"max_tokens": True}, "$.max_tokens: not <class 'int'> but True"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "txt": "x", "text": "x"}]}]},
            "$.messages[0].content[0]: no key 'txt' in TextBlockParam",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "input": {}}]}]},
            "$.messages[0].content[0]: ToolUseBlockParam needs the key 'name'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x", "signature": 1}]}]},
            "$.messages[0].content[0].signature: not <class 'str'> but 1",
        ),
    ],
)
def test_a_fault_deep_in_a_body_is_named_with_its_place(change: JsonObject, fault: str) -> None:
    assert messages_faults({**MESSAGES, **change}) == [fault]


def test_what_the_vendor_requires_is_required_though_its_annotations_are_strings() -> None:
    tool: Json = {"type": "function", "name": "f"}
    assert responses_faults({**RESPONSES, "tools": [tool]}) == [
        "$.tools[0]: FunctionToolParam needs the key 'parameters'",
        "$.tools[0]: FunctionToolParam needs the key 'strict'",
    ]


def test_sampling_is_known_to_the_version_that_is_spoken_and_must_be_a_number() -> None:
    assert messages_faults({**MESSAGES, "temperature": 1, "top_p": 0.5, "top_k": 3}) == []
    assert messages_faults({**MESSAGES, "temperature": "1"}) == ["$.temperature: not <class 'float'> but '1'"]


def test_keys_that_only_some_servers_know_can_be_allowed_by_name() -> None:
    assert chat_faults({**CHAT, "thinking": {}}, extensions=frozenset({"thinking"})) == []
    assert len(chat_faults({**CHAT, "thinking": {}})) == 1
