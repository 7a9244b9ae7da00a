"""Sessions of outside agents as they are read: their prompts, calls and trees."""
