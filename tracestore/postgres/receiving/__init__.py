"""The end of shipping in a shared store: what comes from the trace files of other machines."""
