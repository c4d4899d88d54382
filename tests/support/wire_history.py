"""Reads the history of a request in wire JSON, and checks whether its provider would accept it."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Sequence

from callboard.bus.values.base import Json, JsonObject
from callboard.bus.values.content import ContentBlock, DocumentBlock, ImageBlock, TextBlock, ToolResultBlock
from callboard.bus.values.messages import Message, Role


def history_faults(path: str, body: JsonObject) -> list[str]:
    """The faults of a request."""
    if path.endswith("/messages"):
        return _messages(body["messages"])
    if path.endswith("/responses"):
        return _responses(body["input"])
    if "enerateContent" in path:
        return _contents(body["contents"])
    return _chat(body["messages"])


def _blocks(message: JsonObject, kind: str, key: str) -> list[Json]:
    content = message.get("content")
    return [block[key] for block in content if block["type"] == kind] if isinstance(content, list) else []


def _messages(history: Sequence[JsonObject]) -> list[str]:
    faults = []
    roles = [message["role"] for message in history]
    if roles != ["user" if at % 2 == 0 else "assistant" for at in range(len(roles))]:
        faults.append(f"roles do not alternate: {roles}")
    open_calls: list[Json] = []
    for message in history:
        if not message["content"]:
            faults.append("an empty message")
        if sorted(_blocks(message, "tool_result", "tool_use_id")) != sorted(open_calls):
            faults.append(f"calls {open_calls} are not answered at once, each once: {message}")
        open_calls = _blocks(message, "tool_use", "id")
    if open_calls:
        faults.append(f"calls {open_calls} are not answered")
    return faults


def _chat(history: Sequence[JsonObject]) -> list[str]:
    faults = []
    open_calls: list[Json] = []
    for message in history:
        if message["role"] == "tool":
            if message["tool_call_id"] not in open_calls:
                faults.append(f"a result without its call: {message}")
            else:
                open_calls.remove(message["tool_call_id"])
            continue
        if open_calls:
            faults.append(f"calls {open_calls} are not answered at once")
        open_calls = [call["id"] for call in message.get("tool_calls") or []]
        if not open_calls and not message.get("content"):
            faults.append(f"an empty message: {message}")
    if open_calls:
        faults.append(f"calls {open_calls} are not answered")
    return faults


def _responses(items: Sequence[JsonObject]) -> list[str]:
    calls = [item["call_id"] for item in items if item.get("type") in ("function_call", "custom_tool_call")]
    outputs = ("function_call_output", "custom_tool_call_output")
    results = [item["call_id"] for item in items if item.get("type") in outputs]
    faults = []
    if len(set(calls)) != len(calls):
        faults.append(f"a call id twice: {calls}")
    if sorted(calls) != sorted(results):
        faults.append(f"calls {calls} and results {results} are no pairs")
    return faults


def _contents(contents: Sequence[JsonObject]) -> list[str]:
    faults = []
    if contents[0]["role"] != "user" or contents[-1]["role"] != "user":
        faults.append(f"it doesn't begin and end with the user: {[content['role'] for content in contents]}")
    open_calls: list[Json] = []
    for content in contents:
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        results = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        if not content["parts"] or not all(content["parts"]):
            faults.append(f"an empty content or part: {content}")
        if results and len(results) != len(content["parts"]):
            faults.append(f"results are not alone: {content}")
        if [(result["id"], result["name"]) for result in results] != open_calls:
            faults.append(f"calls {open_calls} are not answered at once, in order: {content}")
        open_calls = [(call["id"], call["name"]) for call in calls]
        if calls and content["role"] != "model":
            faults.append(f"a call of the user: {content}")
    if open_calls or len(set(open_calls)) != len(open_calls):
        faults.append(f"calls {open_calls} are not answered")
    return faults


Reader = Callable[[list[JsonObject]], tuple[ContentBlock, ...]]
"""An adapter's function that reads the blocks or items of a reply."""


def read_messages(history: Sequence[JsonObject], read_reply: Reader) -> list[Message]:
    """The messages of a Messages API request as canonical ones; tool calls have the wire's ids."""
    found: list[Message] = []
    for message in history:
        content = message["content"]
        if message["role"] == "assistant":
            found.append(Message(Role.ASSISTANT, read_reply(content)))
            continue
        results = [block for block in content if block["type"] == "tool_result"]
        if results:
            found.append(Message(Role.TOOL, tuple(_messages_result(block) for block in results)))
        said = tuple(_messages_part(block) for block in content if block["type"] != "tool_result")
        if said:
            found.append(Message(Role.USER, said))
    return found


def _messages_result(block: JsonObject) -> ToolResultBlock:
    content = block.get("content", "")
    parts = content if isinstance(content, str) else tuple(_messages_part(part) for part in content)
    return ToolResultBlock(block["tool_use_id"], parts, block.get("is_error", False))  # type: ignore[arg-type]


def _messages_part(block: JsonObject) -> ContentBlock:
    if block["type"] == "text":
        return TextBlock(block["text"])
    source, name = block["source"], block.get("title")
    match source["type"]:
        case "url" if block["type"] == "image":
            return ImageBlock(url=source["url"])
        case "url":
            return DocumentBlock(url=source["url"], name=name)
        case "text":
            return DocumentBlock(data=source["data"].encode(), media_type=source["media_type"], name=name)
    data, media_type = b64decode(source["data"]), source["media_type"]
    if block["type"] == "image":
        return ImageBlock(data=data, media_type=media_type)
    return DocumentBlock(data=data, media_type=media_type, name=name)


def read_items(items: Sequence[JsonObject], read_reply: Reader) -> list[Message]:
    """The input items of a Responses request as canonical messages; tool calls have the wire's ids."""
    found: list[Message] = []
    reply: list[JsonObject] = []
    results: list[ToolResultBlock] = []
    for item in [*items, {"role": "end"}]:
        is_result = item.get("type") in ("function_call_output", "custom_tool_call_output")
        is_said = item.get("role") in ("user", "developer", "end")
        if reply and (is_result or is_said):
            found.append(Message(Role.ASSISTANT, read_reply(reply)))
            reply = []
        if results and not is_result:
            found.append(Message(Role.TOOL, tuple(results)))
            results = []
        if is_result:
            results.append(_responses_result(item))
        elif is_said and item["role"] != "end":
            found.append(Message(Role(item["role"]), _responses_parts(item["content"])))
        elif not is_said:
            reply.append(item)
    return found


def _responses_result(item: JsonObject) -> ToolResultBlock:
    parts = _responses_parts(item["output"])
    is_error = isinstance(parts[0], TextBlock) and parts[0].text.startswith("Error: ")
    if is_error:
        text = parts[0].text.removeprefix("Error: ")  # type: ignore[union-attr]
        parts = (*((TextBlock(text),) if text else ()), *parts[1:])
    return ToolResultBlock(item["call_id"], parts, is_error)  # type: ignore[arg-type]


def _responses_parts(content: Json) -> tuple[ContentBlock, ...]:
    if isinstance(content, str):
        return (TextBlock(content),)
    return tuple(_responses_part(part) for part in content)


def _responses_part(part: JsonObject) -> ContentBlock:
    match part["type"]:
        case "input_text":
            return TextBlock(part["text"])
        case "input_image":
            url, detail = part["image_url"], None if part["detail"] == "auto" else part["detail"]
            if not url.startswith("data:"):
                return ImageBlock(url=url, detail=detail)
            media_type, data = _data_url(url)
            return ImageBlock(data=data, media_type=media_type, detail=detail)
        case "input_file" if "file_url" in part:
            return DocumentBlock(url=part["file_url"])
        case "input_file":
            media_type, data = _data_url(part["file_data"])
            return DocumentBlock(data=data, media_type=media_type, name=part["filename"])
    raise AssertionError(part)


def _data_url(url: str) -> tuple[str, bytes]:
    head, _, data = url.removeprefix("data:").partition(";base64,")
    return head, b64decode(data)
