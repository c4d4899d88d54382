"""Chat Completions, with the differences of its servers as data."""

from ...provider import Provider, Vendor

PROVIDER = Provider(
    name="openai_compatible",
    adapter="adapter:OpenAICompatibleAdapter",
    kinds=("chat", "embedding", "image", "video"),
    base_url_variable="OPENAI_BASE_URL",
    rates="rates.json",
    vendor_of="quirks:vendor_of",
    other_vendors=(
        Vendor(name="azure", telemetry="azure.ai.openai", litellm=("azure_ai",)),
        Vendor(name="fireworks", litellm=("fireworks_ai",)),
        Vendor(name="mistral", telemetry="mistral_ai"),
        Vendor(name="moonshot", telemetry="moonshot_ai", genai_prices="moonshotai"),
        Vendor(name="together", litellm=("together_ai",)),
        Vendor(name="xai", telemetry="x_ai", genai_prices="x-ai"),
    ),
)
