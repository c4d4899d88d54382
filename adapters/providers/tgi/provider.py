"""Text Generation Inference among the providers."""

from adapters.provider import Provider

PROVIDER = Provider(name="tgi", adapter="adapter:TGIAdapter")
