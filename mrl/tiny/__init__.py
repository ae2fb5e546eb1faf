"""The tiny pair: two small models, and the word problems that they learn from."""
