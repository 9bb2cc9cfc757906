"""Language models: providers behind one interface, prompts, replies and costs."""
