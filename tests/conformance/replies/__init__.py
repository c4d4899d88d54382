"""The replies of providers on each wire, and how they are read: one table for each phenomenon."""
