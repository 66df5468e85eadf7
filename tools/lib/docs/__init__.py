"""Pages of docs/ that follow from the source: what is generated, and how the site is built."""
