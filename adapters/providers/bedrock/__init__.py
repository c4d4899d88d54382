"""The embedding models of Amazon Bedrock."""
