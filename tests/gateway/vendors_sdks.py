"""The vendors' SDKs as clients of a URL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anthropic
import openai
from google import genai
from google.genai import types


@asynccontextmanager
async def openai_sdk(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0, timeout=20) as sdk:
        yield sdk


@asynccontextmanager
async def anthropic_sdk(url: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(api_key="none", base_url=url, max_retries=0, timeout=20) as sdk:
        yield sdk


@asynccontextmanager
async def genai_sdk(url: str) -> AsyncIterator[genai.Client]:
    sdk = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=url, timeout=20_000))
    try:
        yield sdk
    finally:
        await sdk.aio.aclose()
        sdk.close()
