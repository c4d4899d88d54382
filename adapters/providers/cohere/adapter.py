"""Cohere's embeddings as an adapter."""

from __future__ import annotations

from adapters.embeddings.http import EmbeddingOnlyAdapter
from adapters.requests.settings import SharedOptions

from .embeddings import CohereEmbeddings


class CohereAdapter(EmbeddingOnlyAdapter):
    """Cohere's embedding models. A conversation is refused with CapabilityError.

    A request's ``provider_options["cohere"]``, or under the adapter's own name, is merged into the body. Usage is
    what Cohere bills (``billed_units``). Without an input type, which its models want, texts are embedded as
    documents, with a warning.
    """

    default_name = "cohere"
    options_type = SharedOptions
    default_base_url = "https://api.cohere.com"
    embedding_wire = CohereEmbeddings()
