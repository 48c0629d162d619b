"""The pages in docs/ that are made of the code, and what must hold for all of docs/."""
