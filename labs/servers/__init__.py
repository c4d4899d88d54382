"""Every server as it is: its wire, its demands, its refusals and its errors; see `__main__`."""
