"""Batches of Responses: OpenAI's batches, whose lines go to ``/v1/responses``.

The endpoint is among those that the type of `endpoint` lists in OpenAI's own package (3.54.0,
`openai.types.batch_create_params`).
"""

from __future__ import annotations

from callboard.adapters.protocols.openai_batches import OpenAIBatches

from .errors import CODES

RESPONSES_BATCHES = OpenAIBatches(endpoint="/v1/responses", codes=CODES)
"""Batches of OpenAI's own service, and of servers that have its Responses API and its batches."""
