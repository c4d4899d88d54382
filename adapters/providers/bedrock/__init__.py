"""The embedding models of Amazon Bedrock."""

from ...provider import Provider, Vendor

PROVIDER = Provider(
    name="bedrock",
    adapter="adapter:BedrockAdapter",
    kinds=("embedding",),
    vendor=Vendor(name="aws", telemetry="aws.bedrock", litellm=("bedrock", "bedrock_converse")),
)
