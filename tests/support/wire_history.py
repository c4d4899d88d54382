"""Whether a request's history is one that its provider would take: roles and tool pairs, from the wire's JSON."""

from __future__ import annotations

from collections.abc import Sequence

from bus.json_types import Json, JsonObject


def history_faults(path: str, body: JsonObject) -> list[str]:
    """What is wrong with a request; empty if nothing is. path: tells the protocol."""
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
    calls = [item["call_id"] for item in items if item.get("type") == "function_call"]
    results = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
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
