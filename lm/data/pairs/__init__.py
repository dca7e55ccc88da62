"""Sources with their translations."""
