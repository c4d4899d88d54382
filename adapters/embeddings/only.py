"""The wire of a provider that embeds and holds no conversations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from callboard.adapters.contract import AdapterCapabilities, CanonicalRequest
from callboard.adapters.http.wire import ChatWire, OtherWires
from callboard.adapters.http.wire_call import WireCall, bearer
from callboard.adapters.replies.assembler import Assembler
from callboard.adapters.replies.normaliser import StreamNormaliser
from callboard.bus.errors import CapabilityError, InvalidRequestError

from .wire import EmbeddingWire


class EmbeddingOnlyWire(ChatWire):
    """A `ChatWire` that refuses every conversation with CapabilityError."""

    capabilities = AdapterCapabilities(supports_system_prompt=False, supports_streaming=False)
    embeddings: ClassVar[EmbeddingWire]
    """The wire of the embeddings."""

    def other_wires(self) -> OtherWires:
        return OtherWires(embeddings=self.embeddings)

    def auth_headers(self, key: str | None) -> Mapping[str, str]:
        return bearer(key)

    def write_request(self, request: CanonicalRequest, *, stream: bool) -> WireCall:
        raise CapabilityError(
            f"{self.name} embeds texts and holds no conversations: use `engine.embed(texts, model=...)`",
            provider=self.name,
            request_id=request.request_id,
        )

    def read_reply(self, body: bytes, headers: Mapping[str, str], assembler: Assembler) -> None:
        raise InvalidRequestError(f"{self.name} holds no conversations")

    def normaliser(self, assembler: Assembler) -> StreamNormaliser:
        raise InvalidRequestError(f"{self.name} holds no conversations")
