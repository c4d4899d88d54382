"""OpenAI's Responses API, images and videos."""

from ...provider import Provider, Vendor

PROVIDER = Provider(
    name="openai",
    adapter="adapter:OpenAIAdapter",
    kinds=("chat", "embedding", "image", "video"),
    key_variables=("OPENAI_API_KEY",),
    base_url_variable="OPENAI_BASE_URL",
    expected=True,
    precedence=1,
    home="api.openai.com",
    key_words=("openai",),
    models="data",
    rates="rates.json",
    vendor=Vendor(name="openai"),
)
