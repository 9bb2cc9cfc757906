"""Jobs of the engine in an editor: progress, results, restarts, pending manual prompts."""
