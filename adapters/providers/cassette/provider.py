"""The descriptor of recordings. A recording serves the requests that were recorded."""

from callboard.adapters.provider import Provider

PROVIDER = Provider(name="cassette", adapter="adapter:cassette_adapter", kinds=())
