"""The store as a whole: what is in it, what can go, what is damaged, what leaves or comes."""
