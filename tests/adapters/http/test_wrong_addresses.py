"""A wrong address is said when the adapter is made; where only the reply shows it, the error tells what came."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from callboard.adapters import AdapterConfig, create_adapter
from callboard.adapters.conformance.http_kit import FakeReply, FakeTransport, failing
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.provider import providers
from callboard.bus.errors import AdapterError, ConfigurationError, InvalidRequestError, StreamError

from ...support.fake_http import request
from ...support.virtual_time import FakeClock
from ..operations.making import MODELS, embedding_request, image_request

pytestmark = pytest.mark.anyio


WITHOUT_ADDRESS = ("cassette", "local", "scripted")
WITH_ADDRESS = tuple(provider.name for provider in providers() if provider.name not in WITHOUT_ADDRESS)
TALKERS = tuple(
    provider.name for provider in providers() if provider.name in WITH_ADDRESS and "chat" in provider.kinds
)

WRONG = {
    "api.test/v1": "neither http:// nor https://",
    "localhost:8080": "neither http:// nor https://",
    "ftp://api.test": "neither http:// nor https://",
    "https://": "no host",
    "https:///v1": "no host",
    "http://[::zz]/v1": "IPv6|no address",
    "http://[::1/v1": "no address",
    "http://api.test:99999": "no address: port out of range",
    "http://api.test:port": "no address",
    "http://api.test:0": "port 0",
    "https://api.test/v1?key=sk-secret-0123456789": "a query",
    "https://api.test/v1#sk-secret-0123456789": "a fragment",
    "https://user:sk-secret-0123456789@api.test/v1": "a user or a password",
    "https://sk-secret-0123456789@api.test": "a user or a password",
    "https://api test/v1": "white space",
    "https://api.test/\nv1": "white space",
    "https://api.test\\v1": "a host that is none",
}


@pytest.mark.parametrize("url", WRONG)
@pytest.mark.parametrize("kind", WITH_ADDRESS)
def test_an_address_that_is_none_is_a_configuration_error(kind: str, url: str) -> None:
    """It names the adapter and the field, says what is wrong, and quotes no secret."""
    with pytest.raises(ConfigurationError, match=WRONG[url]) as raised:
        create_adapter(kind, AdapterConfig(api_key="a-key", base_url=url), name="mine")
    assert str(raised.value).startswith("mine: base_url ")
    assert "sk-secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        " https://api.test/v1/ ",
        "http://127.0.0.1:8080",
        "http://[::1]:8080/v1",
        "http://[fe80::1%25eth0]:8080",
        "https://käse.test",
        "http://my_server:1",
        "HTTPS://api.test",
    ],
)
def test_an_address_that_may_be_one_is_taken(url: str) -> None:
    """White space around it is nobody's wish."""
    adapter = create_adapter("openai", AdapterConfig(api_key="a-key", base_url=url), name="mine")
    assert isinstance(adapter, HttpAdapter)
    assert adapter.base_url == url.strip().rstrip("/").removesuffix("/v1")


PAGE = b"<!DOCTYPE html>\n<html><head><title>Welcome to nginx!</title></head><body>It works.</body></html>"
HTML = {"content-type": "text/html; charset=utf-8"}


async def ask(kind: str, way: str, reply: FakeReply) -> tuple[AdapterError, int]:
    """How a request ends, and how often it was sent. Ollama is asked about its model first."""
    first = [failing(404, b"{}")] if kind == "ollama" and way != "embedded" else []
    transport = FakeTransport(*first, *[reply] * 3)
    config = AdapterConfig(api_key="a-secret-key", base_url="https://wrong.test", max_retries=2)
    adapter = create_adapter(kind, config, name=kind, clock=FakeClock(), transport=transport)
    with pytest.raises(AdapterError) as raised:
        match way:
            case "whole":
                await adapter.complete(request(model=f"{kind}:m"))
            case "streamed":
                async for _ in adapter.stream(request(model=f"{kind}:m")):
                    pass
            case "embedded":
                await adapter.embed(embedding_request(kind, "hello"))  # type: ignore[attr-defined]
            case _:
                await adapter.make_images(image_request(f"{kind}:gpt-image-1"))  # type: ignore[attr-defined]
    return raised.value, len(transport.requests) - len(first)


WAYS = [(kind, way) for kind in TALKERS for way in ("whole", "streamed")] + [(kind, "embedded") for kind in MODELS]


@pytest.mark.parametrize(("kind", "way"), WAYS)
@pytest.mark.parametrize(
    "headers",
    [HTML, {"content-type": "text/plain"}, {"content-type": ""}, {"content-type": "application/json"}],
    ids=["html", "plain", "none", "json"],
)
async def test_a_page_with_status_200_is_told_as_such(kind: str, way: str, headers: Mapping[str, str]) -> None:
    """Its type, how it begins and who sent it; it is not asked for again, whatever it calls itself."""
    error, sent = await ask(kind, way, FakeReply(PAGE, headers=headers))
    assert isinstance(error, StreamError)
    said = str(error)
    assert "wrong.test" in said
    assert "Welcome to nginx!" in said
    assert (headers["content-type"].partition(";")[0] or "no content type") in said
    assert "base_url" in said
    assert sent == 1


@pytest.mark.parametrize(("kind", "way"), [*WAYS, ("openai", "pictured")])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("target", ["https://right.test/v1?key=sk-secret-0123456789", ""])
async def test_a_redirect_says_where_to(kind: str, way: str, status: int, target: str) -> None:
    """It is not followed: the key must not go where a reply says."""
    headers = {"location": target} if target else {}
    error, sent = await ask(kind, way, FakeReply(b"", status=status, headers={**HTML, **headers}))
    assert isinstance(error, InvalidRequestError)
    said = str(error)
    assert "wrong.test redirects" in said
    assert ("to https://right.test/v1," if target else "without saying where to") in said
    assert "correct base_url" in said
    assert "sk-secret" not in said
    assert sent == 1


@pytest.mark.parametrize(("kind", "way"), WAYS)
async def test_a_page_with_an_error_s_status_says_who_sent_it(kind: str, way: str) -> None:
    """So that a gateway's 404 isn't taken for the provider's."""
    error, sent = await ask(kind, way, FakeReply(PAGE, status=404, headers=HTML))
    said = str(error)
    assert "text/html, from wrong.test" in said
    assert "Welcome to nginx!" in said
    assert sent == 1
