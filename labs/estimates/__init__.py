"""Fits the rates of the token estimator to recorded requests, and to generated text that tokenizers counted."""
