"""Recordings among the providers: what a recording serves is what was recorded."""

from adapters.provider import Provider

PROVIDER = Provider(name="cassette", adapter="adapter:cassette_adapter", kinds=())
