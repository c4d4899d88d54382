"""Servers that behave like each real server: its wire, its demands, its refusals and its errors; see
`__main__`.
"""
