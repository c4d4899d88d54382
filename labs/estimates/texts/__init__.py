"""Generates texts of many kinds from seeds. The rates of the token estimator are fitted to them and tested on
them.
"""
