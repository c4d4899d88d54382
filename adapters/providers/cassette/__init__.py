"""A provider from a cassette: the adapter plays or records it."""

from ...provider import Provider

PROVIDER = Provider(name="cassette", adapter="adapter:cassette_adapter", kinds=())
