"""A configuration is read completely or refused: addresses, options and keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.adapters import AdapterConfig, create_adapter
from callboard.adapters.conformance.http_kit import FakeReply, FakeTransport, failing
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.provider import adapter_types, providers
from callboard.bus.errors import AdapterError, ConfigurationError, InvalidRequestError, StreamError
from callboard.engine import Engine
from callboard.engine.models.configured import read_models_yaml

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
    "api.test/v1": "does not start with http:// or https://",
    "localhost:8080": "does not start with http:// or https://",
    "ftp://api.test": "does not start with http:// or https://",
    "https://": "no host",
    "https:///v1": "no host",
    "http://[::zz]/v1": "its host is invalid",
    "http://[::1/v1": "its host is invalid",
    "http://api.test:99999": "its port must be a number",
    "http://api.test:port": "its port must be a number",
    "http://api.test:0": "port 0",
    "https://api.test/v1?key=sk-secret-0123456789": "a query",
    "https://api.test/v1#sk-secret-0123456789": "a fragment",
    "https://user:sk-secret-0123456789@api.test/v1": "a user or a password",
    "https://sk-secret-0123456789@api.test": "a user or a password",
    "https://api test/v1": "white space",
    "https://api.test/\nv1": "white space",
    "https://api.test\\v1": "an invalid host",
}


@pytest.mark.parametrize("kind", WITH_ADDRESS)
def test_an_invalid_address_is_a_configuration_error(kind: str) -> None:
    """The error has the adapter, the field and the reason, and quotes no secret."""
    for url, why in WRONG.items():
        with pytest.raises(ConfigurationError, match=why) as raised:
            create_adapter(kind, AdapterConfig(api_key="a-key", base_url=url), name="mine")
        assert str(raised.value).startswith("mine: base_url "), url
        assert "sk-secret" not in str(raised.value), url


@pytest.mark.parametrize("url", [
    " https://api.test/v1/ ", "http://127.0.0.1:8080", "http://[::1]:8080/v1", "http://[fe80::1%25eth0]:8080",
    "https://käse.test", "http://my_server:1", "HTTPS://api.test",
])  # fmt: skip
def test_an_address_that_may_be_valid_is_accepted(url: str) -> None:
    """White space around an address is removed."""
    adapter = create_adapter("openai", AdapterConfig(api_key="a-key", base_url=url), name="mine")
    assert isinstance(adapter, HttpAdapter)
    assert adapter.base_url == url.strip().rstrip("/").removesuffix("/v1")


PAGE = b"<!DOCTYPE html>\n<html><head><title>Welcome to nginx!</title></head><body>It works.</body></html>"
HTML = {"content-type": "text/html; charset=utf-8"}


async def ask(kind: str, way: str, reply: FakeReply) -> tuple[AdapterError, int]:
    """Send a request. Returns its error and the number of requests. Ollama is first asked about its model."""
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
async def test_a_page_is_reported_as_a_page(kind: str, way: str) -> None:
    """The error has the type, the beginning and the server of the page. The call is not retried, for any content
    type. A gateway's 404 is not taken for the provider's.
    """
    for content_type in (HTML["content-type"], "text/plain", "", "application/json"):
        error, sent = await ask(kind, way, FakeReply(PAGE, headers={"content-type": content_type}))
        assert isinstance(error, StreamError)
        words = (
            "wrong.test",
            "Welcome to nginx!",
            "base_url",
            content_type.partition(";")[0] or "no content type",
        )
        assert [word for word in words if word not in str(error)] == []
        assert sent == 1
    error, sent = await ask(kind, way, FakeReply(PAGE, status=404, headers=HTML))
    assert [word for word in ("text/html, from wrong.test", "Welcome to nginx!") if word not in str(error)] == []
    assert sent == 1


@pytest.mark.parametrize(("kind", "way"), [*WAYS, ("openai", "pictured")])
async def test_a_redirect_is_reported_with_its_target(kind: str, way: str) -> None:
    """The redirect is not followed, because the key must not go to an address from a reply."""
    where = {"location": "https://right.test/v1?key=sk-secret-0123456789"}
    for status, headers in ((301, where), (302, {}), (307, where), (308, where)):
        error, sent = await ask(kind, way, FakeReply(b"", status=status, headers={**HTML, **headers}))
        assert isinstance(error, InvalidRequestError)
        said, target = str(error), "to https://right.test/v1," if headers else "without a target"
        assert [word for word in ("wrong.test redirects", target, "correct base_url") if word not in said] == []
        assert "sk-secret" not in said
        assert sent == 1


# -- A configuration is read completely or refused: every option is used, and no key goes to another vendor.


NEAR = {
    "anthropic": ("auto_cach", "auto_cache"),
    "bedrock": ("regoin", "region"),
    "cassette": ("fil", "file"),
    "gemini": ("api_verson", "api_version"),
    "local": ("contex_tokens", "context_tokens"),
    "ollama": ("num_ctxt", "num_ctx"),
    "openai": ("organisation", "organization"),
    "openai_compatible": ("quirk", "quirks"),
    "scripted": ("reply", "replies"),
    "tgi": ("templat", "template"),
}


@pytest.mark.parametrize("kind", adapter_types())
def test_an_unknown_option_is_an_error_that_names_the_nearest(kind: str) -> None:
    """Every type of adapter raises this error, with the adapter and the type. Without a similar option, it lists
    all: `repair` is an option of all types that send requests.
    """
    wrong, meant = NEAR.get(kind, ("repar", "repair"))
    with pytest.raises(ConfigurationError) as raised:
        create_adapter(kind, AdapterConfig(options={wrong: True}), name="mine")
    assert str(raised.value).startswith(f"mine: options of type {kind}: ")
    assert f"`{wrong}`, did you mean `{meant}`?" in str(raised.value)
    if kind in WITH_ADDRESS:
        with pytest.raises(ConfigurationError, match=r"unknown field `xyzzy`. Expected .*repair"):
            create_adapter(kind, AdapterConfig(options={"xyzzy": 1}), name="mine")
        create_adapter(kind, AdapterConfig(options={"repair": False}), name="mine")


@pytest.mark.parametrize(("kind", "options"), [
    ("anthropic", {"auto_cache": "no"}),
    ("anthropic", {"cache_ttl": "2h"}),
    ("openai", {"organization": 7}),
    ("gemini", {"api_version": 1}),
    ("openai_compatible", {"path": ["x"]}),
    ("cohere", {"repair": "no"}),
])  # fmt: skip
def test_an_option_of_the_wrong_kind_is_an_error(kind: str, options: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="options of type"):
        create_adapter(kind, AdapterConfig(options=options), name="mine")  # type: ignore[arg-type]


ASTRAY = [
    ("openai_compatible", None),
    ("openai_compatible", "GROQ_API_KEY"),
    ("openai_compatible", "MY_KEY"),
    ("openai_compatible", "ANTHROPIC_API_KEY"),
    ("openai_compatible", "AZURE_OPENAI_API_KEY"),
    ("openai", "GROQ_API_KEY"),
    ("openai", "AZURE_OPENAI_API_KEY"),
    ("anthropic", "OPENAI_API_KEY"),
    ("anthropic", "DEEPSEEK_API_KEY"),
    ("gemini", "OPENAI_API_KEY"),
    ("cohere", "VOYAGE_API_KEY"),
    ("voyage", "COHERE_API_KEY"),
]


@pytest.mark.parametrize(("kind", "variable"), ASTRAY)
def test_a_key_that_may_be_another_vendor_s_needs_an_address(kind: str, variable: str | None) -> None:
    """The key would be sent to the vendor of the type. With an address, the key goes to that address. A header
    can also have a key.
    """
    config = AdapterConfig(api_key="sk-secret-0123456789", api_key_env=variable)
    in_header = AdapterConfig(extra_headers={"authorization": "Bearer sk-secret-0123456789"})
    for asked in (config, in_header) if kind == "openai_compatible" else (config,):
        with pytest.raises(ConfigurationError, match="Set base_url") as raised:
            create_adapter(kind, asked, name="mine")
        assert "sk-secret" not in str(raised.value)
        assert str(raised.value).startswith("mine: without base_url, ")
    elsewhere = AdapterConfig(api_key="k", api_key_env=variable, base_url="https://x.test")
    assert create_adapter(kind, elsewhere, name="mine")


@pytest.mark.parametrize(("kind", "variable"), [
    ("openai_compatible", "OPENAI_API_KEY"),
    ("openai_compatible", "MY_OPENAI_KEY"),
    ("openai", None),
    ("openai", "WORK_KEY"),
    ("anthropic", "CLAUDE_KEY_2"),
    ("gemini", "GOOGLE_API_KEY"),
    ("cohere", "CO_API_KEY"),
    ("tgi", "HF_TOKEN"),
    ("ollama", "OPENAI_API_KEY"),
])  # fmt: skip
def test_a_key_of_the_right_vendor_needs_no_address(kind: str, variable: str | None) -> None:
    """A server on this machine needs no address either."""
    adapter = create_adapter(kind, AdapterConfig(api_key="a-secret-key", api_key_env=variable), name="mine")
    assert isinstance(adapter, HttpAdapter)
    assert adapter.base_url == adapter.wire.default_base_url


@pytest.mark.anyio
@pytest.mark.parametrize("variable", ["GROQ_API_KEY", "OPENAI_API_KEY"])
async def test_models_yaml_passes_the_source_of_the_key_to_the_adapter(tmp_path: Path, variable: str) -> None:
    """An adapter without an address is refused before its first request."""
    path = tmp_path / "models.yaml"
    path.write_text(
        f"adapters:\n  mine: {{type: openai_compatible, api_key_env: {variable}}}\n"
        "models:\n  mine:m: {adapter: mine, wire_name: m}\n"
    )
    registry = read_models_yaml(path, {variable: "sk-secret-0123456789"})
    config = registry.adapters["mine"].config
    assert (config.api_key, config.api_key_env) == ("sk-secret-0123456789", variable)
    if variable == "GROQ_API_KEY":
        async with Engine(models=registry, trace=False) as engine:
            with pytest.raises(ConfigurationError, match="Set base_url"):
                await engine.session("mine:m").send("Hi")
