"""Cohere's embeddings as an adapter."""

from __future__ import annotations

from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.operations.answers import EmbeddingOnlyWire
from callboard.adapters.requests.settings import SharedOptions

from .embeddings import CohereEmbeddings


class CohereWire(EmbeddingOnlyWire):
    """Cohere's models, which only embed."""

    default_name = "cohere"
    options_type = SharedOptions
    default_base_url = "https://api.cohere.com"
    embeddings = CohereEmbeddings()


class CohereAdapter(HttpAdapter):
    """Cohere's embedding models. A conversation is refused with CapabilityError.

    A request's ``provider_options["cohere"]``, or under the adapter's own name, is merged into the body. Usage is
    what Cohere bills (``billed_units``). Without an input type, which its models want, texts are embedded as
    documents, with a warning.
    """

    wire_type = CohereWire
