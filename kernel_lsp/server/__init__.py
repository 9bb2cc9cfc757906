"""The language server. The only room that knows the Language Server Protocol; nothing of the user's runs in it."""
