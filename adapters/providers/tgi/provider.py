"""The descriptor of Text Generation Inference."""

from adapters.provider import Provider

PROVIDER = Provider(name="tgi", adapter="adapter:TGIAdapter")
