"""Three nodes of one cluster in processes of their own, and what befalls them."""
