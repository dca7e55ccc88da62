"""Files in, text out: reading, decompressing, dividing into documents, lines, examples and pairs."""
