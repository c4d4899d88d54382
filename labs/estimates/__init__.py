"""Fits the rates of the token estimator to recorded requests, and to generated texts with known token counts."""
