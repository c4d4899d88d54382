"""The replies of providers on each wire and their reading: one table for each phenomenon."""
