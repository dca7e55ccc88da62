"""Little English stories, written by a seeded grammar: a corpus that ships with the project.

`python -m corpora.stories [FOLDER]` writes `train.txt` and `heldout.txt`, byte for byte the same on every machine.

    dice        the only source of chance
    lexicon     the words: kinds, names, traits, things, foods, weather
    grammar     agreement, articles, pronouns and dialogue tags
    template    the language that sentences are written in: slots and alternatives
    scheme      a plot and its tables; from a scheme to a story
    schemes/    the plots, one file each
    corpus      from stories to the two files, and which story goes where
"""
