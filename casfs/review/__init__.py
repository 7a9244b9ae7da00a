"""Reviews: comments of a person on what an agent has changed, and what became of each."""
