"""The language server. Only this package knows the Language Server Protocol; no user code runs in its process.

In: messages of an editor. Out: diagnostics, hovers, lenses, actions and edits, at once; and what jobs of the engine
find, when it is known. Never: a request that waits for a compiler or for torch. Handlers get the `State`, and reach the
editor through its `Client`; neither knows a handler.
"""
