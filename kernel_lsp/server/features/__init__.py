"""Answer the client's requests about a document from cached results; nothing here blocks."""
