"""The transcripts of outside agents, each in its own form, cut at a prompt or a call."""
