"""The server that the conformance suite of MCP tests: an `mcp_service` with the tools that the suite calls.

    python -m labs.mcp.conformance_server PORT

The tools are plain functions and `Tool` objects, so `callboard serve-mcp -T labs/mcp/conformance_server.py` serves
them, too.
"""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64decode
from typing import Any

from callboard import DocumentBlock, ImageBlock, TextBlock, Tool, ToolContext, ToolDefinition, mcp_service, tool
from callboard.engine.mcp import McpService
from callboard.engine.tools import ToolLike

PIXEL = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
SILENCE = b64decode("UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA==")


def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


def test_image_content() -> ImageBlock:
    """Return an image."""
    return ImageBlock(data=PIXEL, media_type="image/png")


def test_audio_content() -> DocumentBlock:
    """Return a recording."""
    return DocumentBlock(data=SILENCE, media_type="audio/wav")


def test_embedded_resource() -> DocumentBlock:
    """Return a resource."""
    text = b"This is an embedded resource content."
    return DocumentBlock(data=text, media_type="text/plain", name="test://embedded-resource")


def test_multiple_content_types() -> list[object]:
    """Return several kinds of content."""
    data = DocumentBlock(
        data=json.dumps({"test": "data", "value": 123}).encode(),
        media_type="application/json",
        name="test://mixed-content-resource",
    )
    return [TextBlock("Multiple content types test:"), ImageBlock(data=PIXEL), data]


def test_error_handling() -> str:
    """Fail."""
    raise ValueError("This tool intentionally returns an error for testing")


async def test_tool_with_progress(context: ToolContext) -> str:
    """Report progress."""
    for part in (0, 0.5, 1):
        context.progress(fraction=part)
        await asyncio.sleep(0.05)
    return "Done."


SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def _echo(arguments: dict[str, object]) -> dict[str, object]:
    return arguments


json_schema_2020_12_tool = Tool(
    ToolDefinition("json_schema_2020_12_tool", "Return its arguments.", SCHEMA),
    _echo,
)

test_custom_headers = Tool(
    ToolDefinition(
        "test_custom_headers",
        "A tool with a parameter that clients repeat in a header.",
        {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}},
    ),
    _echo,
)


def test_trigger_tool_change() -> str:
    """Add or remove a tool."""
    return _toggled(TOOLS, another)


def test_trigger_prompt_change() -> str:
    """Add or remove a prompt."""
    return _toggled(PROMPTS, another)


def test_logging_tool() -> str:
    """Return a text, and log nothing for the client."""
    return "Nothing was logged."


@tool(needs_approval=True)
def test_streaming_elicitation() -> str:
    """Run if the user of the client approves it."""
    return "Approved."


def another() -> str:
    """A tool that is added and removed."""
    return "another"


def _toggled(items: list[Any], item: object) -> str:
    if item in items:
        items.remove(item)
        return "removed"
    items.append(item)
    return "added"


TOOLS: list[ToolLike] = [
    test_simple_text,
    test_image_content,
    test_audio_content,
    test_embedded_resource,
    test_multiple_content_types,
    test_error_handling,
    test_tool_with_progress,
    json_schema_2020_12_tool,
    test_custom_headers,
    test_trigger_tool_change,
    test_trigger_prompt_change,
    test_logging_tool,
    test_streaming_elicitation,
]


# --- Resources and prompts ---


def template(id: str) -> dict[str, object]:
    """A resource with a variable in its URI."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


def static_binary() -> ImageBlock:
    """An image."""
    return ImageBlock(data=PIXEL)


def watched() -> str:
    """A text that a client subscribes to."""
    return "Watched."


RESOURCES = {
    "test://static-text": static_text,
    "test://static-binary": static_binary,
    "test://watched-resource": watched,
    "test://template/{id}/data": template,
}


def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A prompt with arguments.

    Args:
        arg1: The first.
        arg2: The second.
    """
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


def test_prompt_with_embedded_resource(resourceUri: str) -> list[object]:
    """A prompt with a resource.

    Args:
        resourceUri: Its URI.
    """
    text = b"Embedded resource content for testing."
    document = DocumentBlock(data=text, media_type="text/plain", name=resourceUri)
    return [document, TextBlock("Please process the embedded resource above.")]


def test_prompt_with_image() -> list[object]:
    """A prompt with an image."""
    return [ImageBlock(data=PIXEL), TextBlock("Please analyze the image above.")]


PROMPTS: list[ToolLike] = [
    test_simple_prompt,
    test_prompt_with_arguments,
    test_prompt_with_embedded_resource,
    test_prompt_with_image,
]


def service() -> McpService:
    return mcp_service(TOOLS, resources=RESOURCES, prompts=PROMPTS, name="callboard-conformance")


if __name__ == "__main__":
    import uvicorn

    uvicorn.run(service().http_app(), port=int(sys.argv[1]), log_level="error")
