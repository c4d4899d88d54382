"""The addresses of the gateway: what a method and a path ask for, and on which wire."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from .http import Incoming

Purpose: TypeAlias = Literal[
    "reply",
    "respond",
    "count_tokens",
    "embed_openai",
    "embed_gemini",
    "make_images",
    "list_models",
    "show_model",
    "show_response",
    "delete_response",
    "cancel_response",
    "list_items",
    "take_spans",
]
"""What a client asks for."""


class Address(NamedTuple):
    """A request's method and path, understood."""

    wire: str
    """The name of the wire; empty for one that is known by the headers."""
    purpose: Purpose
    name: str = ""
    """The model or the id in the path."""
    action: str = ""
    """The method of Gemini's API that the path names."""


FIXED: Mapping[tuple[str, str], Address] = {
    ("POST", "/v1/chat/completions"): Address("chat", "reply"),
    ("POST", "/v1/responses"): Address("responses", "respond"),
    ("POST", "/v1/responses/input_tokens"): Address("responses", "count_tokens"),
    ("POST", "/v1/messages"): Address("messages", "reply"),
    ("POST", "/v1/messages/count_tokens"): Address("messages", "count_tokens"),
    ("POST", "/v1/embeddings"): Address("chat", "embed_openai"),
    ("POST", "/v1/images/generations"): Address("chat", "make_images"),
    ("POST", "/v1/traces"): Address("chat", "take_spans"),
    ("GET", "/v1/models"): Address("", "list_models"),
    ("GET", "/v1beta/models"): Address("gemini", "list_models"),
    ("GET", "/v1alpha/models"): Address("gemini", "list_models"),
}

_GEMINI = re.compile(r"/(?:v1beta|v1|v1alpha)/(?:models|tunedModels)/(?P<model>.+):(?P<action>[A-Za-z]+)")
_GEMINI_PURPOSES: Mapping[str, Purpose] = {
    "generateContent": "reply",
    "streamGenerateContent": "reply",
    "countTokens": "count_tokens",
    "embedContent": "embed_gemini",
    "batchEmbedContents": "embed_gemini",
}

_RESPONSE = re.compile(r"/v1/responses/(?P<id>[^/]+)(?:/(?P<action>cancel|input_items))?")
_RESPONSE_PURPOSES: Mapping[tuple[str, str | None], Purpose] = {
    ("GET", None): "show_response",
    ("DELETE", None): "delete_response",
    ("POST", "cancel"): "cancel_response",
    ("GET", "input_items"): "list_items",
}

_MODEL = re.compile(r"/(?P<version>v1|v1beta|v1alpha)/models/(?P<model>.+)")


def find(request: Incoming) -> Address | None:
    """What a request asks for; None if it is nothing of the gateway's."""
    return find_path(request, request.path.rstrip("/"))


def find_path(request: Incoming, path: str) -> Address | None:
    """What a request would ask for with this path."""
    fixed = FIXED.get((request.method, path))
    if fixed is not None:
        return fixed if fixed.wire else fixed._replace(wire=wire_of(request))
    if request.method == "POST" and (found := _GEMINI.fullmatch(path)):
        purpose = _GEMINI_PURPOSES.get(found["action"])
        return None if purpose is None else Address("gemini", purpose, found["model"], found["action"])
    if found := _RESPONSE.fullmatch(path):
        purpose = _RESPONSE_PURPOSES.get((request.method, found["action"]))
        return None if purpose is None else Address("responses", purpose, found["id"])
    if request.method == "GET" and (found := _MODEL.fullmatch(path)):
        wire = wire_of(request) if found["version"] == "v1" else "gemini"
        return Address(wire, "show_model", found["model"])
    return None


def hint_at(request: Incoming) -> str:
    """What a client with a wrong base URL may have meant; empty if nothing is like it."""
    path = request.path.rstrip("/")
    for meant in (f"/v1{path}", path.removeprefix("/v1"), f"/v1beta{path}"):
        if meant != path and find_path(request, meant) is not None:
            return f". Did you mean {meant}? Check the base URL"
    return ""


def wire_of(request: Incoming) -> str:
    """The name of a client's wire, by its path and its headers."""
    if request.path.startswith("/v1/messages") or "anthropic-version" in request.headers:
        return "messages"
    if request.path.startswith(("/v1beta/", "/v1alpha/")) or "x-goog-api-key" in request.headers:
        return "gemini"
    return "responses" if request.path.startswith("/v1/responses") else "chat"


def key_of(request: Incoming) -> str | None:
    """The key of a client, wherever its SDK puts it; None if it sent none."""
    headers = request.headers
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key") or headers.get("x-goog-api-key") or request.query.get("key") or None
