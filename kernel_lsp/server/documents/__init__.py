"""Open documents: their texts, edits of ours, notebooks, places in them. Nothing here analyses."""
