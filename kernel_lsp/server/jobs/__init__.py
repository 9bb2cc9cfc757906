"""Jobs of the engine as editors see them: progress, results, restarts, prompts that wait for an answer."""
