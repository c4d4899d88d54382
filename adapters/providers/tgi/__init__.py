"""Text Generation Inference by its own endpoints, `/generate` and `/generate_stream`: text in, text out.

Its Chat Completions are served by `openai_compatible`, with ``quirks: tgi``.
"""

from callboard.adapters.provider import Provider

PROVIDER = Provider(name="tgi", adapter="adapter:TGIAdapter")
