"""Anthropic's Messages API."""

from ...provider import Provider, Vendor

PROVIDER = Provider(
    name="anthropic",
    adapter="adapter:AnthropicAdapter",
    key_variables=("ANTHROPIC_API_KEY",),
    base_url_variable="ANTHROPIC_BASE_URL",
    expected=True,
    precedence=2,
    home="api.anthropic.com",
    key_words=("anthropic", "claude"),
    models="data",
    rates="rates.json",
    vocabulary="claude",
    vendor=Vendor(name="anthropic"),
)
