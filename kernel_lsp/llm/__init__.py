"""Language models: providers behind one seam, prompts, replies, what they cost."""
