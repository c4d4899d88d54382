"""A provider that is a recording: the adapter of what was recorded plays it, or records it."""

from callboard.adapters.provider import Provider

PROVIDER = Provider(name="cassette", adapter="adapter:cassette_adapter", kinds=())
