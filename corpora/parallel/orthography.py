"""From words to a written line: commas, capitals and the final mark."""

from .syntax import Mood


def written(words: list[str], mood: Mood) -> str:
    """Return the sentence that a list of words and commas makes; a comma at a comma or at the end is not written."""
    text = ""
    for word, following in zip(words, [*words[1:], ","], strict=True):
        if word == ",":
            text += "," if following != "," else ""
        else:
            text += (" " if text else "") + word
    return text[0].upper() + text[1:] + ("?" if mood is Mood.QUESTION else ".")
