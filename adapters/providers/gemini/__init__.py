"""Google's Gemini API."""

from ...provider import Provider, Vendor

PROVIDER = Provider(
    name="gemini",
    adapter="adapter:GeminiAdapter",
    kinds=("chat", "embedding", "image", "video"),
    key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    base_url_variable="GEMINI_BASE_URL",
    expected=True,
    precedence=3,
    home="generativelanguage.googleapis.com",
    key_words=("gemini", "google", "vertex"),
    models="data",
    rates="rates.json",
    vocabulary="gemma",
    vendor=Vendor(name="gemini", telemetry="gcp.gemini", genai_prices="google"),
    other_vendors=(Vendor(name="vertex", telemetry="gcp.vertex_ai", litellm=("vertex_ai-language-models",)),),
)
