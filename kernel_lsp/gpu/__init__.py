"""What is known of GPUs, and times estimated from it."""
