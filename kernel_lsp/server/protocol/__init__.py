"""The Language Server Protocol: framing, handshake, positions, our own requests and their document.

In: bytes of a client. Out: messages, typed and in our positions, and replies to every request. Never: the content of an
answer.
"""
