"""The Language Server Protocol: framing, handshake, positions, our own requests and their document."""
