"""Text Generation Inference's own endpoints, `/generate` and `/generate_stream`.

`openai_compatible` serves its Chat Completions, with ``quirks: tgi``.
"""

from ...provider import Provider

PROVIDER = Provider(name="tgi", adapter="adapter:TGIAdapter")
