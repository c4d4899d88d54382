"""Images and files that clients name by URL: no provider fetches them from a private network."""

from __future__ import annotations

import socket
from typing import Any

import anyio
import pytest

from callboard.adapters import AdapterConfig
from callboard.engine import Engine
from callboard.engine.gateway import addresses, gateway
from tests.gateway.asking import post
from tests.support.engines import entry, running, serving
from tests.support.scripted import Say

PRIVATE = (
    "http://169.254.169.254/latest/meta-data", "http://127.0.0.1:8375/v1/models", "HTTP://LOCALHOST/a.png",
    "http://a.localhost./a.png", "http://metadata.google.internal/computeMetadata/v1", "http://redis:6379/",
    "http://10.0.0.1/a.png", "https://192.168.1.1/a.png", "http://[::1]/a.png",
    "http://[::ffff:169.254.169.254]/a.png", "http://[fd00:ec2::254]/a.png", "http://2130706433/a.png",
    "http://0x7f.1/a.png", "http://0177.0.0.1/a.png", "http://%31%32%37.0.0.1/a.png", "http://①②⑦.⓪.⓪.①/a.png",
    "http://0.0.0.0/a.png", "http://a.example\\@127.0.0.1/a.png", "http://user@127.0.0.1/a.png", "http:///a.png",
    "http://[/a.png", "file:///etc/passwd", "FILE:/etc/passwd",
)  # fmt: skip


def chat(part: dict[str, Any], model: str = "s:m") -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": [{"type": "text", "text": "Look."}, part]}]}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


@pytest.fixture(autouse=True)
def resolved(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The addresses of names, in place of a resolver. An unknown name raises an error."""
    known = {"public.example": "93.184.215.14", "rebound.example": "10.0.0.1"}

    async def getaddrinfo(host: str, port: object) -> list[Any]:
        if host not in known:
            raise socket.gaierror
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (known[host], 0))]

    monkeypatch.setattr(anyio, "getaddrinfo", getaddrinfo)
    return known


async def test_an_address_that_is_not_public_is_refused() -> None:
    async with running() as (engine, events):
        app = gateway(engine, keyless=True)
        answers = {url: await post(app, chat(image(url))) for url in PRIVATE}
        assert not [each for each in events.take() if each.topic.startswith("llm.")]
    refused = {url for url in PRIVATE if answers[url].json.get("error", {}).get("code") == "invalid_url"}
    assert [url for url in PRIVATE if url not in refused or answers[url].status != 400] == []


@pytest.mark.parametrize(("path", "body"), [
    ("/v1/chat/completions", chat({"type": "video_url", "video_url": {"url": "http://10.0.0.1/a.mp4"}})),
    ("/v1/chat/completions", chat({"type": "document_url", "document_url": "http://10.0.0.1/a.pdf"})),
    ("/v1/responses", {"model": "s:m", "input": [{"role": "user",
        "content": [{"type": "input_file", "file_url": "http://10.0.0.1/a.pdf"}]}]}),
    ("/v1/messages", {"model": "s:m", "max_tokens": 9, "messages": [{"role": "assistant",
        "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t",
        "content": [{"type": "image", "source": {"type": "url", "url": "http://10.0.0.1/a.png"}}]}]}]}),
    ("/v1beta/models/s:m:generateContent", {"contents": [{"role": "user",
        "parts": [{"fileData": {"mimeType": "image/png", "fileUri": "http://10.0.0.1/a.png"}}]}]}),
], ids=["video", "document", "file", "image in a tool's result", "Gemini's file"])  # fmt: skip
async def test_it_is_refused_in_every_place_of_every_wire(path: str, body: dict[str, Any]) -> None:
    async with running(Say("Hi")) as (engine, _):
        assert (await post(gateway(engine, keyless=True), body, path=path)).status == 400


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("https://public.example/a.png", 200),
        ("https://rebound.example/a.png", 400),
        ("https://unknown.example/a.png", 200),  # behind a proxy, the gateway resolves no public name
        ("https://93.184.215.14/a.png", 200),
        ("data:image/png;base64,iVBORw0KGgo=", 200),
    ],
)
async def test_a_name_is_resolved_for_a_server_that_is_not_its_vendors(url: str, status: int) -> None:
    async with running(Say("Hi")) as (engine, _):
        assert (await post(gateway(engine, keyless=True), chat(image(url)))).status == status


async def test_names_that_are_not_resolved_in_time_hold_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anyio, "getaddrinfo", lambda host, port: anyio.sleep_forever())
    monkeypatch.setattr(addresses, "RESOLVE_SECONDS", 0.01)
    async with running(Say("Hi")) as (engine, _):
        answer = await post(gateway(engine, keyless=True), chat(image("https://slow.example/a.png")))
    assert answer.status == 200


async def test_a_vendor_resolves_names_itself() -> None:
    """The vendor's server is outside of the gateway's network."""
    own = AdapterConfig(api_key="k", base_url="http://vllm.example")
    models = serving(v=entry("v", "openai", AdapterConfig(api_key="k")), w=entry("w", "openai_compatible", own))
    async with Engine(models=models, trace=False) as engine:
        app = gateway(engine, keyless=True)
        assert (app._has_own_server("v:m"), app._has_own_server("w:m")) == (False, True)


async def test_an_address_in_a_private_network_can_be_allowed() -> None:
    async with running(Say("Hi")) as (engine, _):
        app = gateway(engine, keyless=True, private_media=True)
        assert (await post(app, chat(image("http://10.0.0.1/a.png")))).status == 200


async def test_an_address_in_the_arguments_of_a_tool_is_only_text() -> None:
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "fetch", "arguments": '{"url":"http://localhost"}'},
    }
    body = {"model": "s:m", "messages": [
        {"role": "user", "content": "Look at http://localhost:3000."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "http://127.0.0.1"},
    ]}  # fmt: skip
    async with running(Say("Hi")) as (engine, _):
        assert (await post(gateway(engine, keyless=True), body)).status == 200
