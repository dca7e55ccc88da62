"""The grammar proper: derives abstract sentences at random, with selectional restrictions."""
