"""Text of many kinds, made from a seed: what the rates of the token estimator are fitted to and judged by."""
