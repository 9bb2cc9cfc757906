"""What a client asks about a text, answered from what is known: nothing here waits for more than a moment."""
