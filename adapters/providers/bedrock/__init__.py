"""The embedding models of Amazon Bedrock."""

from .adapter import BedrockAdapter

__all__ = ["BedrockAdapter"]
