"""The judges of requests are strict: they find each kind of fault at its place."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from callboard import JsonObject

from ..support.judges import (
    chat_faults,
    embed_contents_faults,
    embeddings_faults,
    images_faults,
    messages_faults,
    ollama_embed_faults,
    responses_faults,
    video_parameters_faults,
    videos_faults,
)

MESSAGES: JsonObject = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}
RESPONSES: JsonObject = {"model": "m", "input": [{"role": "user", "content": "Hi"}]}
CHAT: JsonObject = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
Judge = Callable[[JsonObject], list[str]]


@pytest.mark.parametrize(
    ("judge", "body"), [(messages_faults, MESSAGES), (responses_faults, RESPONSES), (chat_faults, CHAT)]
)
def test_a_good_body_has_no_faults_and_an_unknown_key_is_one(judge: Judge, body: JsonObject) -> None:
    assert judge(body) == []
    assert judge({**body, "stream": True, "temperature": 1, "top_p": 0.5}) == []
    (fault,) = judge({**body, "nonsense": 1})
    assert "'nonsense'" in fault


def user(**block: object) -> JsonObject:
    return {"messages": [{"role": "user", "content": [block]}]}


@pytest.mark.parametrize(("change", "fault"), [
    ({"max_tokens": "1"}, "$.max_tokens: not <class 'int'> but '1'"),
    ({"max_tokens": True}, "$.max_tokens: not <class 'int'> but True"),
    ({"temperature": "1"}, "$.temperature: not <class 'float'> but '1'"),
    (user(type="text", txt="x", text="x"), "$.messages[0].content[0]: no key 'txt' in TextBlockParam"),
    (user(type="tool_use", id="a", input={}), "$.messages[0].content[0]: ToolUseBlockParam needs the key 'name'"),
    (user(type="thinking", thinking="x", signature=1),
     "$.messages[0].content[0].signature: not <class 'str'> but 1"),
])  # fmt: skip
def test_a_fault_deep_in_a_body_is_named_with_its_place(change: JsonObject, fault: str) -> None:
    assert messages_faults({**MESSAGES, **change}) == [fault]


def test_what_the_vendor_requires_is_required_though_its_annotations_are_strings() -> None:
    assert responses_faults({**RESPONSES, "tools": [{"type": "function", "name": "f"}]}) == [
        "$.tools[0]: FunctionToolParam needs the key 'parameters'",
        "$.tools[0]: FunctionToolParam needs the key 'strict'",
    ]


def test_keys_that_only_some_servers_know_can_be_allowed_by_name() -> None:
    assert chat_faults({**CHAT, "thinking": {}}, extensions=frozenset({"thinking"})) == []
    assert len(chat_faults({**CHAT, "thinking": {}})) == 1


@pytest.mark.parametrize(("judge", "body"), [
    (images_faults, {"model": "m"}),
    (images_faults, {"prompt": "p", "quality": "best"}),
    (videos_faults, {"prompt": "p", "seconds": 8}),
    (videos_faults, {"prompt": "p", "audio": True}),
    (video_parameters_faults, {"instances": [], "parameters": {"seconds": 8}}),
    (video_parameters_faults, {"instances": [], "parameters": {}, "config": {}}),
    (embeddings_faults, {"model": "m"}),
    (embeddings_faults, {"model": "m", "input": ["x"], "encoding_format": "hex"}),
    (embeddings_faults, {"model": "m", "input": ["x"], "input_type": "query"}),
    (embed_contents_faults, {"requests": [{"model": "m", "content": {"parts": []}}]}),
    (embed_contents_faults, {"requests": [{"model": "models/m", "content": {"parts": []}, "task": "x"}]}),
    (ollama_embed_faults, {"model": "m", "input": ["x"], "dimensions": "x"}),
    (ollama_embed_faults, {"model": "m", "input": ["x"], "input_type": "x"}),
])  # fmt: skip
def test_the_judges_of_other_operations_are_strict(judge: Callable[[bytes], list[str]], body: JsonObject) -> None:
    assert judge(msgspec.json.encode(body))
