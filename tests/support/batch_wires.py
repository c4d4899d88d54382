"""The five wires of batches, with their adapters at one server."""

from __future__ import annotations

from callboard.adapters import AdapterConfig, CanonicalRequest, Message, RetryPolicy
from callboard.adapters.batches import BatchItem, BatchJob, BatchRequest
from callboard.adapters.http.adapter import HttpAdapter
from callboard.adapters.provider import create_adapter

MODELS = {
    "anthropic": "claude-haiku-4-5", "openai": "gpt-5-mini", "gemini": "gemini-2.5-flash",
    "mistral": "mistral-small-latest", "groq": "openai/gpt-oss-20b",
}  # fmt: skip
"""The wires, each with a model that has a batch price."""

QUICKLY = RetryPolicy(base_delay=0.001, max_delay=0.002, jitter=False)


def config_of(wire: str, url: str) -> AdapterConfig:
    """The configuration of a wire's adapter."""
    base = f"{url}/openai/v1" if wire == "groq" else url
    options = {"quirks": wire} if wire in ("mistral", "groq") else {}
    return AdapterConfig(api_key="a-secret-key", base_url=base, retry=QUICKLY, options=options)


def type_of(wire: str) -> str:
    return "openai_compatible" if wire in ("mistral", "groq") else wire


def adapter_at(wire: str, url: str) -> HttpAdapter:
    made = create_adapter(type_of(wire), config_of(wire, url), name=wire)
    assert isinstance(made, HttpAdapter)
    return made


def items_of(wire: str, *texts: str, batch: str = "b") -> tuple[BatchItem, ...]:
    return tuple(
        BatchItem(
            f"{batch}-{place}",
            CanonicalRequest(
                request_id=f"r{place}",
                model=f"{wire}:{MODELS[wire]}",
                messages=(Message.user(text),),
                max_output_tokens=500,
            ),
        )
        for place, text in enumerate(texts)
    )


def request_of(wire: str, items: tuple[BatchItem, ...], mark: str = "mark-1") -> BatchRequest:
    return BatchRequest(request_id="create", model=f"{wire}:{MODELS[wire]}", mark=mark, items=items)


async def ended(adapter: HttpAdapter, job: BatchJob, model: str) -> BatchJob:
    """Poll the job until it has ended."""
    while not job.done:
        job = await adapter.retrieve_batch(job.id, model=model)
    return job
