"""Cohere's embedding models."""

from ...provider import Provider, Vendor

PROVIDER = Provider(
    name="cohere",
    adapter="adapter:CohereAdapter",
    kinds=("embedding",),
    key_variables=("COHERE_API_KEY",),
    home="api.cohere.com",
    key_words=("cohere",),
    vendor=Vendor(name="cohere", litellm=("cohere_chat",)),
)
