"""Answer the client's requests about a document from cached results; nothing here blocks.

In: a document, its analysis and cached results. Out: hovers, lenses, hints, actions, diagnostics. Never: a wait for a
job or a process.
"""
