"""Images and videos: made by whichever model is asked for, traced and priced like every call."""
