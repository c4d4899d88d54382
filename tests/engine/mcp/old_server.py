"""An MCP server with the protocol of 2025, in plain Python: JSON lines over stdin and stdout, without the library.

python old_server.py NAME [--tools a,b] [--crash] [--crash-until FILE] [--strict]

--tools         offers only these of its tools --crash         exits at its start, with a text on stderr
--crash-until   exits in the same way until this file exists, and creates the file --strict        exits if the
first message is not `initialize`
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

NAME = sys.argv[1]
OPTIONS = sys.argv[2:]
TEXT = {"type": "string"}
TOOLS: dict[str, dict[str, Any]] = {
    "echo": {"text": TEXT},
    "die_in_call": {},
    "die_after_call": {},
    "hang": {"mark": TEXT},
    "add_tool": {"name": TEXT},
    "ask": {"mode": TEXT},
    "sample": {"text": TEXT},
    "roots": {},
    "big": {"size": {"type": "integer"}},
    "say": {"level": TEXT, "text": TEXT},
    "pid": {},
}
FORM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "default": 30}},
    "required": ["name"],
}

writing = threading.Lock()
answers: dict[int, SimpleQueue[Any]] = {}
cancelled: dict[Any, threading.Event] = {}


def value_of(option: str) -> str | None:
    return OPTIONS[OPTIONS.index(option) + 1] if option in OPTIONS else None


offered = dict(TOOLS)
if (only := value_of("--tools")) is not None:
    offered = {name: TOOLS.get(name, {"text": TEXT}) for name in only.split(",")}


def write(message: dict[str, Any]) -> None:
    with writing:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def ask_client(method: str, params: dict[str, Any]) -> Any:
    number = len(answers) + 1000
    answers[number] = SimpleQueue()
    write({"id": number, "method": method, "params": params})
    reply = answers[number].get()
    return reply.get("result", reply.get("error"))


def run_tool(number: Any, name: str, given: dict[str, Any]) -> None:
    text = ""
    match name:
        case "echo":
            text = f"{NAME}: {given['text']}"
        case "die_in_call":
            os._exit(3)
        case "hang":
            cancelled[number].wait()
            Path(given["mark"]).write_text("cancelled")
            return
        case "add_tool":
            offered[given["name"]] = {"text": TEXT}
            write({"method": "notifications/tools/list_changed"})
        case "ask":
            params = {"message": "Who?", "requestedSchema": FORM}
            if given["mode"] == "url":
                params = {"mode": "url", "message": "Log in", "url": "https://example.com/", "elicitationId": "e1"}
            text = json.dumps(ask_client("elicitation/create", params))
        case "sample":
            message = {"role": "user", "content": {"type": "text", "text": given["text"]}}
            params = {"messages": [message], "maxTokens": 50, "systemPrompt": "Be short."}
            text = json.dumps(ask_client("sampling/createMessage", params))
        case "roots":
            text = json.dumps([root["uri"] for root in ask_client("roots/list", {})["roots"]])
        case "big":
            text = "a" * (given["size"] - 3) + "end"
        case "say":
            write({"method": "notifications/message", "params": {"level": given["level"], "data": given["text"]}})
        case "pid":
            text = str(os.getpid())
        case "die_after_call":
            text = "last words"
        case _:
            text = f"{NAME} ran {name}"
    write({"id": number, "result": {"content": [{"type": "text", "text": text}]}})
    if name == "die_after_call":
        os._exit(0)


def answer(message: dict[str, Any]) -> None:
    number, method, params = message["id"], message["method"], message.get("params", {})
    result: dict[str, Any] | None = None
    match method:
        case "initialize":
            result = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {"listChanged": True}, "resources": {}, "prompts": {}, "logging": {}},
                "serverInfo": {"name": NAME, "version": "1"},
                "instructions": f"Use {NAME} well.",
            }
        case "tools/list":
            result = {
                "tools": [
                    {
                        "name": name,
                        "description": name,
                        "inputSchema": {"type": "object", "properties": schema, "required": list(schema)},
                    }
                    for name, schema in offered.items()
                ]
            }
        case "tools/call":
            cancelled[number] = threading.Event()
            threading.Thread(
                target=run_tool, args=(number, params["name"], params["arguments"]), daemon=True
            ).start()
            return
        case "logging/setLevel":
            result = {}
        case "resources/list":
            result = {"resources": [{"uri": "note:1", "name": "one", "mimeType": "text/plain", "size": 5}]}
        case "resources/templates/list":
            result = {"resourceTemplates": [{"uriTemplate": "note:{id}", "name": "a note"}]}
        case "resources/read":
            result = {"contents": [{"uri": params["uri"], "text": f"note {params['uri']}"}]}
        case "prompts/list":
            argument = {"name": "book", "required": True}
            result = {"prompts": [{"name": "review", "description": "Review", "arguments": [argument]}]}
        case "prompts/get":
            words = f"Review {params['arguments']['book']}"
            result = {"messages": [{"role": "user", "content": {"type": "text", "text": words}}]}
    if result is None:
        write({"id": number, "error": {"code": -32601, "message": f"no such method: {method}"}})
    else:
        write({"id": number, "result": result})


def main() -> None:
    until = value_of("--crash-until")
    if "--crash" in OPTIONS or (until is not None and not Path(until).exists()):
        if until is not None:
            Path(until).touch()
        sys.stderr.write("no paper in the printer\n")
        sys.stderr.flush()
        os._exit(1)
    first = True
    for line in sys.stdin:
        message = json.loads(line)
        if first and "--strict" in OPTIONS and message.get("method") != "initialize":
            os._exit(2)
        first = False
        if "method" not in message:
            answers[message["id"]].put(message)
        elif "id" in message:
            answer(message)
        elif message["method"] == "notifications/cancelled":
            cancelled.setdefault(message["params"]["requestId"], threading.Event()).set()


if __name__ == "__main__":
    main()
