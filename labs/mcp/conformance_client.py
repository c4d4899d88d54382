"""The client that the conformance suite of MCP starts for each of its scenarios.

    MCP_CONFORMANCE_SCENARIO=tools_call python -m labs.mcp.conformance_client URL

It opens the server as a host does, with `mcp_servers`, and calls each of its tools.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import httpx2

from callboard import McpOAuth, McpServers, McpTool, ToolContext, mcp_servers
from callboard.bus import RestartPolicy

REDIRECT = "http://127.0.0.1:8373/callback"
METADATA_DOCUMENT = "https://conformance-test.local/client-metadata.json"

VALUES: dict[str, Any] = {
    "string": "plain",
    "integer": 3,
    "number": 2.5,
    "boolean": True,
    "object": {},
    "array": [],
}


LISTED: list[McpTool] = []


def arguments_of(tool: McpTool) -> dict[str, Any]:
    """A value for each parameter of a tool."""
    if tool.original_name == "json_schema_echo":
        echoed = next(each for each in LISTED if each.original_name != tool.original_name)
        return {"schema": echoed.definition.input_schema}
    properties: Any = tool.definition.input_schema.get("properties") or {}
    return {name: VALUES.get(schema.get("type"), "plain") for name, schema in properties.items()}


class Person:
    """A user who immediately follows each redirect of a login, as a browser does."""

    def __init__(self) -> None:
        self._came = ""

    async def open(self, url: str) -> None:
        async with httpx2.AsyncClient() as browser:
            reply = await browser.get(url)
        self._came = reply.headers["location"]

    async def returned(self) -> str:
        return self._came


def authentication(scenario: str, url: str, context: dict[str, Any]) -> object:
    """The authentication that a scenario wants: a person's login, or another flow of the client library."""
    from mcp.client.auth.extensions.client_credentials import (
        ClientCredentialsOAuthProvider,
        PrivateKeyJWTOAuthProvider,
        SignedJWTParameters,
    )

    storage = Memory()
    match scenario:
        case "auth/client-credentials-basic":
            return ClientCredentialsOAuthProvider(
                server_url=url,
                storage=storage,
                client_id=context["client_id"],
                client_secret=context["client_secret"],
            )
        case "auth/client-credentials-jwt":
            signed = SignedJWTParameters(
                issuer=context["client_id"],
                subject=context["client_id"],
                signing_algorithm=context["signing_algorithm"],
                signing_key=context["private_key_pem"],
            )
            return PrivateKeyJWTOAuthProvider(
                server_url=url,
                storage=storage,
                client_id=context["client_id"],
                assertion_provider=signed.create_assertion_provider(),
            )
        case "auth/cross-app-access-complete-flow" | "auth/enterprise-managed-authorization":
            return cross_app_access(url, storage, context)
        case _ if scenario.startswith("auth/"):
            person = Person()
            return McpOAuth(
                open_url=person.open,
                wait_for_redirect=person.returned,
                redirect_uri=REDIRECT,
                client_id=context.get("client_id"),
                client_secret=context.get("client_secret"),
                client_metadata_url=METADATA_DOCUMENT,
            )
        case _:
            return None


def cross_app_access(url: str, storage: Memory, context: dict[str, Any]) -> object:
    """A login at the company's identity provider that also gives access to the server."""
    from mcp.client.auth.extensions.identity_assertion import IdentityAssertionOAuthProvider

    async def assertion(audience: str, resource: str) -> str:
        async with httpx2.AsyncClient() as http:
            reply = await http.post(
                context["idp_token_endpoint"],
                data={
                    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
                    "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
                    "subject_token": context["idp_id_token"],
                    "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
                    "audience": audience,
                    "resource": resource,
                    "client_id": context["idp_client_id"],
                },
            )
        token: str = reply.json()["access_token"]
        return token

    with httpx2.Client() as http:
        base = url.removesuffix("/mcp")
        protected = http.get(f"{base}/.well-known/oauth-protected-resource/mcp").json()
    return IdentityAssertionOAuthProvider(
        server_url=url,
        storage=storage,
        client_id=context["client_id"],
        client_secret=context["client_secret"],
        issuer=protected["authorization_servers"][0],
        assertion_provider=assertion,
        token_endpoint_auth_method="client_secret_basic",
    )


class Memory:
    """A storage in memory for the client library's objects."""

    def __init__(self) -> None:
        self._tokens: Any = None
        self._client: Any = None

    async def get_tokens(self) -> Any:
        return self._tokens

    async def set_tokens(self, tokens: Any) -> None:
        self._tokens = tokens

    async def get_client_info(self) -> Any:
        return self._client

    async def set_client_info(self, client_info: Any) -> None:
        self._client = client_info


async def call_all(servers: McpServers, wanted: list[dict[str, Any]]) -> None:
    """Make the calls that the scenario wants, or call each tool."""
    LISTED[:] = servers.tools
    tools = {tool.original_name: tool for tool in servers.tools}
    calls = [(tools[each["name"]], each["arguments"]) for each in wanted if each["name"] in tools]
    for tool, arguments in calls or [(tool, arguments_of(tool)) for tool in servers.tools]:
        assert tool.execute is not None
        context = ToolContext(tool_call_id="tu_1", tool_name=tool.name)
        try:
            result = tool.execute(arguments, context=context)
            sys.stdout.write(f"{tool.name}: {await result}\n")  # type: ignore[misc]
        except Exception as error:
            sys.stdout.write(f"{tool.name}: {type(error).__name__}: {error}\n")


async def main(url: str) -> None:
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    auth = authentication(scenario, url, context)
    async with mcp_servers(
        {"judge": {"url": url}},
        auth={} if auth is None else {"judge": auth},
        elicit=lambda _: "accept",
        restarts=RestartPolicy(max_failures=1),
    ) as servers:
        sys.stdout.write(f"{servers.status()}\n")
        await call_all(servers, context.get("toolCalls") or context.get("tool_calls") or [])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
