"""Jobs of the engine in an editor: progress, results, restarts, pending manual prompts.

In: commands of the editor and messages of the engine. Out: requests to the engine, progress, and edits that the user
reviews. Never: work of a job in the server's process.
"""
