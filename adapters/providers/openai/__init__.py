"""OpenAI's Responses API, images and videos."""
