"""From definitions to groups: what shares a kernel."""
