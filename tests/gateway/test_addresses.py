"""The gateway's addresses: unknown ones, those for other methods, and those of models."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import errors as genai_errors
from google.genai import types

from callboard.engine.gateway import gateway
from callboard.engine.gateway.application import Gateway
from tests.support.engines import running
from tests.support.wires import ChatWire

from .asking import ask, post
from .scripted_providers import serving_models

ANTHROPIC = {"anthropic-version": "2023-06-01"}


@asynccontextmanager
async def serving() -> AsyncIterator[Gateway]:
    async with running() as (engine, _):
        yield gateway(engine, keyless=True)


@pytest.mark.parametrize(("path", "headers", "error"), [
    ("/v1/nothing", {}, {"type": "invalid_request_error", "param": None, "code": None}),
    ("/v1/responses/resp_1/nothing", {}, {"type": "invalid_request_error", "param": None, "code": None}),
    ("/v1/responses/compact", {}, {"type": "invalid_request_error", "param": None, "code": None}),
    ("/v1/messages/batches", {}, {"type": "not_found_error"}),
    ("/v1/nothing", ANTHROPIC, {"type": "not_found_error"}),
    ("/v1beta/nothing", {}, {"code": 404, "status": "NOT_FOUND"}),
    ("/v1beta/models/m:nothing", {}, {"code": 404, "status": "NOT_FOUND"}),
])  # fmt: skip
async def test_an_unknown_address_is_named_in_an_error_of_its_wire(
    path: str, headers: dict[str, str], error: dict[str, Any]
) -> None:
    """The error is not about a model, because clients would then look for another model."""
    async with serving() as app:
        answer = await ask(app, "POST", path, b"{}", headers=headers)
    assert answer.status == 404
    found = answer.json["error"]
    assert f"POST {path} is not an address" in found.pop("message")
    found.pop("details", None)  # Google's field with the id of the request
    assert found == error


@pytest.mark.parametrize(("method", "path", "headers", "allow", "kind"), [
    ("GET", "/v1/chat/completions", {}, "POST", "invalid_request_error"),
    ("OPTIONS", "/v1/chat/completions/", {}, "POST", "invalid_request_error"),
    ("GET", "/v1/responses", {}, "POST", "invalid_request_error"),
    ("PATCH", "/v1/responses/resp_1", {}, "GET, HEAD, DELETE", "invalid_request_error"),
    ("GET", "/v1/responses/input_tokens", {}, "POST", "invalid_request_error"),
    ("GET", "/v1/messages", {}, "POST", "invalid_request_error"),
    ("POST", "/v1/models", ANTHROPIC, "GET, HEAD", "invalid_request_error"),
    ("DELETE", "/v1/models/m", {}, "GET, HEAD", "invalid_request_error"),
    ("PUT", "/v1beta/models/m:generateContent", {}, "GET, HEAD, POST", None),
    ("POST", "/health", {}, "GET, HEAD", "invalid_request_error"),
    ("POST", "/", {}, "GET, HEAD", "invalid_request_error"),
])  # fmt: skip
async def test_a_wrong_method_gets_the_right_ones(
    method: str, path: str, headers: dict[str, str], allow: str, kind: str | None
) -> None:
    async with serving() as app:
        answer = await ask(app, method, path, b"{}", headers=headers)
    assert (answer.status, answer.headers["allow"]) == (405, allow)
    error = answer.json["error"]
    assert error.get("type") == kind
    assert f"{method} {path} is not allowed. Use {allow.replace(', ', ' or ')}" in error["message"]


@pytest.mark.parametrize(("path", "meant"), [
    ("/chat/completions", "/v1/chat/completions"),
    ("/v1/v1/messages", "/v1/messages"),
    ("//v1/messages", "/v1/messages"),
    ("/models/s:m:generateContent", "/v1/models/s:m:generateContent"),
])  # fmt: skip
async def test_a_wrong_base_url_gets_the_right_one(path: str, meant: str) -> None:
    async with serving() as app:
        answer = await post(app, {}, path=path)
    assert answer.status == 404
    assert f"Did you mean {meant}?" in answer.json["error"]["message"]


async def test_head_is_get_without_a_body() -> None:
    async with serving() as app:
        for path in ("/v1/models", "/v1/models/s:m", "/v1beta/models", "/health", "/"):
            answer = await ask(app, "HEAD", path)
            assert (answer.status, answer.data) == (200, b"")
            assert int(answer.headers["content-length"]) > 0 or path in ("/health", "/")


# --- Models, by the vendors' SDKs ---


async def of_openai(url: str, name: str) -> str:
    async with openai.AsyncOpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0) as client:
        return (await client.models.retrieve(name)).id


async def of_anthropic(url: str, name: str) -> str:
    async with anthropic.AsyncAnthropic(api_key="k", base_url=url, max_retries=0) as client:
        return (await client.models.retrieve(name)).id


async def of_gemini(url: str, name: str) -> str:
    client = genai.Client(api_key="k", http_options=types.HttpOptions(base_url=url))
    try:
        found = (await client.aio.models.get(model=name)).name
        assert found is not None
        return found.removeprefix("models/")
    finally:
        await client.aio.aclose()


@pytest.mark.parametrize(("get", "error"), [
    (of_openai, openai.NotFoundError),
    (of_anthropic, anthropic.NotFoundError),
    (of_gemini, genai_errors.ClientError),
])  # fmt: skip
async def test_each_sdk_finds_a_model_by_any_served_name(
    get: Callable[[str, str], Awaitable[str]], error: type[Exception]
) -> None:
    """The names have slashes, colons or match a pattern. Any other name is not found."""
    names = {"team/fast:free": "gpt-4.1", "openai_compatible:gpt-4.1": "gpt-4.1", "claude-*": "gpt-4.1"}
    async with serving_models(ChatWire(), names) as (url, _):
        for name in ("team/fast:free", "openai_compatible:gpt-4.1", "claude-sonnet-4-5"):
            assert await get(url, name) == name
        for name in ("nothing", "team/nothing:free"):
            with pytest.raises(error, match=f"{name}' does not exist") as caught:
                await get(url, name)
            assert 404 in (getattr(caught.value, "status_code", None), getattr(caught.value, "code", None))
