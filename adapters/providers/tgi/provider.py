"""The descriptor of Text Generation Inference."""

from callboard.adapters.provider import Provider

PROVIDER = Provider(name="tgi", adapter="adapter:TGIAdapter")
