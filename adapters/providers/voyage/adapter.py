"""Voyage AI's embeddings as an adapter."""

from __future__ import annotations

from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.operations.answers import EmbeddingOnlyWire
from callboard.adapters.requests.settings import SharedOptions

from .embeddings import VoyageEmbeddings


class VoyageWire(EmbeddingOnlyWire):
    """Voyage's models, which only embed."""

    default_name = "voyage"
    options_type = SharedOptions
    default_base_url = "https://api.voyageai.com"
    embeddings = VoyageEmbeddings()


class VoyageAdapter(HttpAdapter):
    """Voyage AI's embedding models. A conversation is refused with CapabilityError.

    A request's ``provider_options["voyage"]``, or under the adapter's own name, is merged into the body. Where no
    input type is said, Voyage embeds the text as it is.
    """

    wire_type = VoyageWire
