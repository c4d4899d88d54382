"""Voyage AI's embedding models."""

from ...provider import Provider, Vendor

PROVIDER = Provider(
    name="voyage",
    adapter="adapter:VoyageAdapter",
    kinds=("embedding",),
    key_variables=("VOYAGE_API_KEY",),
    home="api.voyageai.com",
    key_words=("voyage", "voyageai"),
    vendor=Vendor(name="voyageai", litellm=("voyage",)),
)
